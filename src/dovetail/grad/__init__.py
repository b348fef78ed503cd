"""Reverse-mode differentiation: the walk from results to operands by the rules of the primitives."""

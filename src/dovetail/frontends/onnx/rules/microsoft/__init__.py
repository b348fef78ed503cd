"""Operators of com.microsoft that optimised and quantised models use."""

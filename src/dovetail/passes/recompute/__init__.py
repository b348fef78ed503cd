"""Save or compute again: which values of the forward pass the backward pass reads, and which it computes again."""

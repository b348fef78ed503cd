"""Attention: online softmax for many queries, streaming for few, packed keys and values."""

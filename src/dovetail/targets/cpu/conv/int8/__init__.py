"""Convolutions of bytes with weights that are known, as products of filters with packed pixels (im2col)."""

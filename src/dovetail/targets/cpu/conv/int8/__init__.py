"""Convolutions of bytes with weights that are known, as products of filters with packed pixels (im2col).

`shape` (sizes, tiles, workspace), `kernel` (packing and the loop nest), `variant` (problems, packed weights).
"""

"""Convolutions as implicit GEMM, and pools ([0019](docs/design/0019-convolutions-on-tensor-cores.md)).

Start at `convolve`; `folded` is for images with few channels, `slide` for pools and depthwise convolutions. `pixels`
are the rows of the GEMM, `packed_filters` its right operand.
"""

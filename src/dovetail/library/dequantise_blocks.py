"""dequantise_blocks: floats from blocks of narrow codes with a scale for each group of them."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.library.block_formats import FORMATS, BlockFormat

_SIZES = [of.bytes for name, of in FORMATS.items() if not name.startswith("int")]
"""Bytes of blocks; blocks with scales in f32 are as large as others, or twice as large."""


@fused_op(shapes=" ".join(f"blocks:u8[*, {size}*n]" for size in _SIZES))
def dequantise_blocks(blocks: Value, *, format: BlockFormat) -> Value:
    """code * scale + low: kernels of products read the blocks, and the floats are never stored."""
    of = FORMATS[format]
    codes, scale, low, below = of.parts(ops.split(blocks, axis=-1, size=of.bytes))
    y = ops.cast(codes, dtype=f32) * scale
    if low is not None:
        y = y + low
    if below is not None:
        y = y - below
    return ops.merge(y, axis=-1, count=of.levels)


__all__ = ["dequantise_blocks"]

"""dequantise_blocks: floats from blocks of narrow codes with a scale for each group of them."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op, part_of_traces
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.library.block_formats import FORMATS, BlockFormat

_SIZES = sorted({of.bytes for of in FORMATS.values()})


@fused_op(shapes=" ".join(f"blocks:u8[*, {size}] blocks:u8[*, {size}*n]" for size in _SIZES))
def dequantise_blocks(blocks: Value, *, format: BlockFormat) -> Value:
    """code * scale + low: kernels of products read the blocks, and the floats are never stored."""
    return ops.merge(_floats(blocks, format), axis=-1, count=FORMATS[format].levels)


@dequantise_blocks.spelling
def one_block(blocks: Value, *, format: BlockFormat) -> Value:
    """Rows of a single block: the axis of blocks has size 1, and nothing is merged with it."""
    levels = FORMATS[format].levels
    y = ops.squeeze(_floats(blocks, format), axes=(-levels,))
    return y if levels == 2 else ops.merge(y, axis=-1)


@part_of_traces
def _floats(blocks: Value, format: BlockFormat) -> Value:
    """[*, blocks, …, group]: what the codes of each block mean."""
    of = FORMATS[format]
    parts = of.parts(ops.split(blocks, axis=-1, size=of.bytes))
    y = ops.cast(parts.codes, dtype=f32) * parts.scale
    if parts.low is not None:
        y = y + parts.low
    return y if parts.below is None else y - parts.below


__all__ = ["dequantise_blocks"]

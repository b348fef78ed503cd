"""Pools over one or two spatial axes: which code serves a step, and how its work is cut."""

from __future__ import annotations

from dovetail.errors import GraphError
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.conv_field import Field
from dovetail.kernels.job import Job, Packed, Places
from dovetail.kernels.pool_text import TOGETHER, pool_text
from dovetail.kernels.vector import Vectors
from dovetail.ops.pooling import average_pool, max_pool
from dovetail.plan.plan import Step


def make_pool(step: Step, places: Places, vectors: Vectors) -> Job | None:
    """The job of a pool of f32."""
    value = step.value
    if value.op not in (max_pool, average_pool) or value.rank > 4 or value.dtype is not f32:
        return None
    try:
        return _job(value, places, vectors)
    except GraphError:
        # Sizes that are too long to be written down.
        return None


def _job(value: Value, places: Places, vectors: Vectors) -> Job:
    x, attrs = value.operands[0], value.attrs
    strides, padding = places(x).strides, attrs["padding"]
    field = Field.of(
        x.shape[2:], strides[2:], value.shape[2:], attrs["window"], attrs["strides"], attrs["dilations"], padding
    )
    behind = padding[len(padding) // 2 :]
    behind = (0, behind[0]) if len(behind) == 1 else behind
    ends = (0, field.sizes[0], 0, field.sizes[1])
    if attrs.get("count_padding", False):
        down, across = [(-b, s + a) for b, s, a in zip(field.before, field.sizes, behind, strict=True)]
        ends = (*down, *across)
    lanes = vectors.lanes
    blocks = field.blocks(1, lanes, TOGETHER)
    code = pool_text(vectors, "max" if value.op is max_pool else "average")
    sizes = (*field.words(blocks), x.shape[1], *strides[:2], *ends)
    points: dict[str, Value | Packed] = {"x": x, "y": value}
    scratch = -(-field.taps // 8) * 64 + 4 * (
        blocks.columns + field.run(blocks) + field.seen(blocks, 1) + (2 * TOGETHER + 5) * lanes
    )
    tiles = value.shape[0] * value.shape[1] * blocks.down * blocks.across
    work = blocks.rows * blocks.columns * (field.taps + 4)
    return Job(code.template(points, sizes, scratch), points, tiles, work)

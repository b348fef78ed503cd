"""Pools over one or two spatial axes: which code serves a step, and how its work is cut."""

from __future__ import annotations

from dovetail.errors import GraphError
from dovetail.ir.dim import floordiv, largest, smallest
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Field
from dovetail.kernels.spec import Job, Packed, TensorLocations, Tiles
from dovetail.ops.pooling import average_pool, max_pool
from dovetail.plan.plan import Step
from dovetail.targets.cpu.pool.kernel import MOST_COLUMNS, Window, pool_text

TILE = 4096
"""Places of a tile, about."""


def make_pool(step: Step, locations: TensorLocations, vectors: CpuDevice) -> Job | None:
    """The job of a pool of f32."""
    value = step.value
    if value.op not in (max_pool, average_pool) or value.rank > 4 or value.dtype is not f32:
        return None
    try:
        return _job(value, locations, vectors)
    except GraphError:
        # Sizes that are too long to be written down.
        return None


def _job(value: Value, locations: TensorLocations, vectors: CpuDevice) -> Job:
    x, attrs = value.operands[0], value.attrs
    strides, padding = locations(x).strides, attrs["padding"]
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
    steps = (*field.window, *field.strides, *field.dilations) if field.window[1] <= MOST_COLUMNS else ()
    code = pool_text(vectors, Window("max" if value.op is max_pool else "average", steps))
    height, width = field.out
    rows = largest(1, smallest(height, floordiv(TILE, largest(1, width))))
    down = floordiv(height + rows - 1, rows)
    # Whole vectors of windows are read, two for each where every second number counts.
    reach = (field.window[1] - 1) * field.dilations[1] + 1
    kept = field.before[1] + field.sizes[1] + (width + lanes) * field.strides[1] + reach + 3 * lanes
    sizes = (
        *field.sizes, *field.steps, *field.out, *field.window, *field.strides, *field.dilations, *field.before,
        rows, down, x.shape[1], *strides[:2], *ends, kept,
    )  # fmt: skip
    bindings: dict[str, Value | Packed] = {"x": x, "y": value}
    scratch = 4 * (kept + width + 3 * lanes)
    tiles = value.shape[0] * value.shape[1] * down
    work = rows * (field.sizes[1] * field.window[0] + width * field.window[1]) // 4
    return Job(code.template(bindings, sizes, scratch), bindings, Tiles(tiles, work))

"""Pooling over one or two spatial axes: which kernel serves a step, and how its work is tiled."""

from __future__ import annotations

from dovetail.ir.dim import floordiv, largest, smallest
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Blocks, ConvGeometry
from dovetail.kernels.spec import Job, Packed, TensorLocations, Tiles
from dovetail.ops.pooling import max_pool
from dovetail.targets.cpu.pool.kernel import ARGUMENTS, PoolAxis, PoolWindow, pool_code
from dovetail.targets.cpu.pool.policy import POOL


def offer_pool(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a pool of f32."""
    value = of.value
    if value.rank > 4:
        return Refused("spatial_axes_are_one_or_two", str(value.rank - 2), "at most 2")
    if value.dtype is not f32:
        return Refused("dtype_is_f32", value.dtype.name)
    return Offer(lambda: _job(value, of.locations, of.device))


def _window(value: Value, geometry: ConvGeometry) -> PoolWindow:
    """The window, known unless unrolling it would take too many columns."""
    pool = "max" if value.op is max_pool else "average"
    if geometry.window[1] > POOL.most_columns:
        return PoolWindow(pool)
    rows, columns = [
        PoolAxis(*axis) for axis in zip(geometry.window, geometry.strides, geometry.dilations, strict=True)
    ]
    return PoolWindow(pool, (rows, columns))


def _job(value: Value, locations: TensorLocations, device: CpuDevice) -> Job:
    x, attrs = value.operands[0], value.attrs
    strides, padding = locations(x).strides, attrs["padding"]
    geometry = ConvGeometry.of(
        x.shape[2:], strides[2:], value.shape[2:], attrs["window"], attrs["strides"], attrs["dilations"], padding
    )
    after = padding[len(padding) // 2 :]
    after = (0, after[0]) if len(after) == 1 else after
    rows_counted, columns_counted = (0, geometry.sizes[0]), (0, geometry.sizes[1])
    if attrs.get("count_padding", False):
        rows_counted, columns_counted = [
            (-b, s + a) for b, s, a in zip(geometry.before, geometry.sizes, after, strict=True)
        ]
    lanes = device.lanes
    code = pool_code(device, _window(value, geometry))
    height, width = geometry.out
    rows = largest(1, smallest(height, floordiv(POOL.tile, largest(1, width))))
    down = floordiv(height + rows - 1, rows)
    # Whole vectors of windows are read, two for each where every second element counts.
    reach = (geometry.window[1] - 1) * geometry.dilations[1] + 1
    kept = geometry.before[1] + geometry.sizes[1] + (width + lanes) * geometry.strides[1] + reach + 3 * lanes
    sizes = geometry.sizes_by_name(Blocks(rows, width, down, 1))
    for name in ("block_columns", "column_blocks"):
        del sizes[name]
    laid = ARGUMENTS.laid_out(
        sizes
        | {
            "channels": x.shape[1], "image_step": strides[0], "channel_step": strides[1],
            "row_low": rows_counted[0], "row_high": rows_counted[1],
            "column_low": columns_counted[0], "column_high": columns_counted[1], "kept": kept,
        },
        {"row": 4 * (kept + lanes), "counts": 4 * (width + 2 * lanes)},
    )  # fmt: skip
    bindings: dict[str, Value | Packed] = {"x": x, "y": value}
    tiles = value.shape[0] * value.shape[1] * down
    work = rows * (geometry.sizes[1] * geometry.window[0] + width * geometry.window[1]) // 4
    return Job(code.template(bindings, laid.sizes, laid.scratch), bindings, Tiles(tiles, work))

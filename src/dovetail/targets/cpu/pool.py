"""Pooling of f32 over one or two spatial axes: one kernel for every size and padding.

A window, stride and dilation are known where unrolling the columns of a window is cheap. A tile is some rows of one
channel of the result. For each of them the rows that its windows see are reduced to one row, with the identity of the
reduction around it; then the columns of each window in that row are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function
from dovetail.codegen.llvm.handles import I64, Int, Ptr, Vec
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, WORDS, Arguments, KernelCode, assemble, kernel_function
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import floordiv, largest, smallest
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Blocks, ConvGeometry
from dovetail.kernels.spec import Job, Packed, TensorLocations, Tiles
from dovetail.ops.pooling import max_pool


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Tiles of pools."""

    vectors: int = 4
    """Vectors of a row that are reduced at once over the rows of a window."""
    most_columns: int = 16
    """Columns of a window that may be unrolled."""
    tile: int = 4096
    """Pixels of a tile, about."""


POOL = PoolPolicy()


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
    padded_width = geometry.before[1] + geometry.sizes[1] + (width + lanes) * geometry.strides[1] + reach + 3 * lanes
    sizes = geometry.sizes_by_name(Blocks(rows, width, down, 1))
    for name in ("block_columns", "column_blocks"):
        del sizes[name]
    laid = ARGUMENTS.laid_out(
        sizes
        | {
            "channels": x.shape[1], "image_step": strides[0], "channel_step": strides[1],
            "row_low": rows_counted[0], "row_high": rows_counted[1],
            "column_low": columns_counted[0], "column_high": columns_counted[1], "padded_width": padded_width,
        },
        {"row": 4 * (padded_width + lanes), "counts": 4 * (width + 2 * lanes)},
    )  # fmt: skip
    bindings: dict[str, Value | Packed] = {"x": x, "y": value}
    tiles = value.shape[0] * value.shape[1] * down
    work = rows * (geometry.sizes[1] * geometry.window[0] + width * geometry.window[1]) // 4
    return Job(code.template(bindings, laid.sizes, laid.scratch), bindings, Tiles(tiles, work))


Pool = Literal["max", "average"]


@dataclass(frozen=True, slots=True)
class PoolArgs:
    """Steps are bytes. An average counts what is from low to before high. `padded_width` elements are in a row with
    those around it."""

    x: Ptr
    y: Ptr
    height: I64
    width: I64
    row_step: I64
    column_step: I64
    out_height: I64
    out_width: I64
    window_rows: I64
    window_columns: I64
    stride_rows: I64
    stride_columns: I64
    dilation_rows: I64
    dilation_columns: I64
    above: I64
    before: I64
    block_rows: I64
    row_blocks: I64
    channels: I64
    image_step: I64
    channel_step: I64
    row_low: I64
    row_high: I64
    column_low: I64
    column_high: I64
    padded_width: I64
    row: Region
    """The row that the rows of a window reduce to."""
    counts: Region
    """How much each column counts."""


ARGUMENTS = Arguments(PoolArgs)


@dataclass(frozen=True, slots=True)
class PoolAxis:
    """A window along one axis: its taps, stride and dilation."""

    taps: Int
    stride: Int
    dilation: Int


@dataclass(frozen=True, slots=True)
class PoolWindow:
    """How windows are reduced, and the axes that are known; None where sizes are arguments."""

    pool: Pool
    known: tuple[PoolAxis, PoolAxis] | None = None

    @property
    def identity(self) -> float:
        """The identity of the reduction."""
        return float("-inf") if self.pool == "max" else 0.0

    def reduce(self, t: VectorBuilder, x: Vec, y: Vec) -> Vec:
        return t.intrinsic("maximum", x, y) if self.pool == "max" else t.fadd(x, y)

    def axes(self, a: PoolArgs) -> tuple[PoolAxis, PoolAxis]:
        """Rows and columns."""
        return self.known or (
            PoolAxis(a.window_rows, a.stride_rows, a.dilation_rows),
            PoolAxis(a.window_columns, a.stride_columns, a.dilation_columns),
        )


def pool_code(device: CpuDevice, window: PoolWindow) -> KernelCode:
    """The kernel."""
    return assemble(f"{window.pool}_pool", [_kernel(device, window)])


def _kernel(device: CpuDevice, window: PoolWindow) -> Function:
    """The tiles from `begin` to before `end`."""
    t, is_average = VectorBuilder(device), window.pool == "average"
    a = ARGUMENTS.load(t, WORDS, SCRATCH)
    rows, columns = window.axes(a)
    with t.steps(0, a.padded_width, t.lanes) as at:
        t.store(t.constant(window.identity), t.ptr_add(a.row, t.mul(at, 4)))
    if is_average:
        with t.loop(0, a.out_width) as column:
            inside = _counted(t, columns, column, a.before, a.column_low, a.column_high)
            t.store_f32(t.sitofp(inside), t.element(a.counts, "float", column))
    inner = t.ptr_add(a.row, t.mul(a.before, 4))
    with t.loop(BEGIN, END) as number:
        row_block, left = t.srem(number, a.row_blocks), t.sdiv(number, a.row_blocks)
        channel, image = t.srem(left, a.channels), t.sdiv(left, a.channels)
        source = t.ptr_add(t.ptr_add(a.x, t.mul(image, a.image_step)), t.mul(channel, a.channel_step))
        first = t.mul(row_block, a.block_rows)
        with t.loop(first, t.smin(a.out_height, t.add(first, a.block_rows))) as row:
            start = t.sub(t.mul(row, rows.stride), a.above)
            low, high = _taps_below(t, rows, start, 0), _taps_below(t, rows, start, a.height)
            _reduce_rows(t, window, a, t.ptr_add(source, t.mul(start, a.row_step)), low, high, inner)
            there = t.ptr_add(a.y, t.mul(t.add(t.mul(left, a.out_height), row), t.mul(a.out_width, 4)))
            weight = ZERO
            if is_average:
                weight = t.splat(t.sitofp(_counted(t, rows, row, a.above, a.row_low, a.row_high)))
            with t.steps(0, a.out_width, t.lanes) as column:
                pooled = _reduce_columns(t, window, a, t.ptr_add(a.row, t.mul(t.mul(column, columns.stride), 4)))
                if is_average:
                    pooled = t.fdiv(pooled, t.fmul(weight, t.load(t.ptr_add(a.counts, t.mul(column, 4)))))
                t.store_masked(t.lanes_within(column, a.out_width), pooled, t.ptr_add(there, t.mul(column, 4)))
    return kernel_function(t)


def _reduce_rows(t: VectorBuilder, window: PoolWindow, a: PoolArgs, line: Ptr, low: I64, high: I64, onto: Ptr) -> None:
    """Reduce rows that are a dilation apart, from a window's tap to before another."""
    step = t.mul(window.axes(a)[0].dilation, a.row_step)
    dense = t.icmp("eq", a.column_step, 4)
    identity = t.constant(window.identity)

    def reduce(column: I64, count: int, read: Callable[[Ptr, int], Vec]) -> None:
        with t.carry(low, high, [identity] * count) as state:
            here = t.ptr_add(t.ptr_add(line, t.mul(state.index, step)), t.mul(column, a.column_step))
            for i in range(count):
                state.vectors[i] = window.reduce(t, state.vectors[i], read(here, i))
        for i, x in enumerate(state.vectors):
            t.store(x, t.ptr_add(onto, t.add(t.mul(column, 4), t.bytes * i)))

    group_width = POOL.vectors * t.lanes
    whole = t.select_int(dense, t.sdiv(a.width, group_width), 0)
    with t.loop(0, whole) as group:
        reduce(t.mul(group, group_width), POOL.vectors, lambda here, i: t.load(t.ptr_add(here, t.bytes * i)))
    with t.steps(t.mul(whole, group_width), a.width, t.lanes) as column:
        mask = t.lanes_within(column, a.width)
        with t.when(dense):
            reduce(column, 1, lambda here, _: t.load_masked(mask, here, identity))
        with t.unless(dense):
            reduce(column, 1, lambda here, _: t.gather(mask, here, a.column_step, identity))


def _reduce_columns(t: VectorBuilder, window: PoolWindow, a: PoolArgs, start: Ptr) -> Vec:
    """Reduce the columns of a vector of windows along a row."""
    identity = t.constant(window.identity)
    columns = window.axes(a)[1]
    if isinstance(columns.taps, int) and isinstance(columns.dilation, int):
        reduced = identity
        for tap in range(columns.taps):
            reduced = window.reduce(
                t, reduced, _strided(t, t.ptr_add(start, 4 * tap * columns.dilation), columns.stride)
            )
        return reduced
    accumulator = t.variable(identity)
    strides: tuple[tuple[Literal["eq", "sgt"], int, Int], ...] = (
        ("eq", 1, 1),
        ("eq", 2, 2),
        ("sgt", 2, columns.stride),
    )
    for order, limit, stride in strides:
        with t.when(t.icmp(order, columns.stride, limit)):
            with t.carry(0, columns.taps, [identity]) as state:
                here = t.ptr_add(start, t.mul(t.mul(state.index, columns.dilation), 4))
                state.vectors[0] = window.reduce(t, state.vectors[0], _strided(t, here, stride))
            t.set(state.vectors[0], accumulator)
    return t.get(accumulator)


def _strided(t: VectorBuilder, here: Ptr, stride: Int) -> Vec:
    """A vector of elements that are as far apart as windows are."""
    if stride == 1:
        return t.load(here)
    if stride == 2:
        return t.shuffle(t.load(here), t.load(t.ptr_add(here, t.bytes)), range(0, 2 * t.lanes, 2))
    return t.gather(t.first_lanes(t.lanes), here, t.mul(stride, 4), ZERO)


def _taps_below(t: VectorBuilder, axis: PoolAxis, start: I64, end: Int) -> I64:
    """Taps of a window before an end: a quotient that is rounded up, also where it is negative."""
    reached = t.ceil_div(t.smax(0, t.sub(end, start)), axis.dilation)
    return t.smin(axis.taps, reached)


def _counted(t: VectorBuilder, axis: PoolAxis, at: I64, before: I64, low: I64, high: I64) -> I64:
    """Taps of a window that count along an axis."""
    start = t.sub(t.mul(at, axis.stride), before)
    below, above = _taps_below(t, axis, start, low), _taps_below(t, axis, start, high)
    return t.sub(above, below)


__all__ = ["offer_pool"]

"""Pools as LLVM's text: one code for every size and padding, and for a window, stride and dilation if they are known.

A tile is some rows of one channel of the result. For each of them the rows that its windows see are taken together into
one row with what never counts around it; then the columns of that row are, as far apart as windows are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dovetail.codegen.llvm.module import Code, Written
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.patch import KERNEL, BlockText

Pool = Literal["max", "average"]
SIZES = (
    "height", "width", "row_step", "column_step", "out_height", "out_width",
    "window_rows", "window_columns", "stride_rows", "stride_columns", "dilation_rows", "dilation_columns",
    "above", "before", "block_rows", "row_blocks", "channels", "image_step", "channel_step",
    "row_low", "row_high", "column_low", "column_high", "kept",
)  # fmt: skip
"""The sizes that the code is given, in their order; steps are bytes. What an average counts lies from low to below
high. `kept` is how many numbers the row has that is made of rows, with all around it."""
TOGETHER = 4
"""CpuDevice of a row that go through the rows of a window at once."""


MOST_COLUMNS = 16
"""Columns of a window that may be written out."""
STEPS = SIZES[6:12]


@dataclass(frozen=True, slots=True)
class Window:
    """A window that goes over rows and columns: its size, strides and dilations, or nothing where they come later."""

    pool: Pool
    steps: tuple[int, ...] = ()
    """What `STEPS` names."""

    def __getitem__(self, name: str) -> str:
        """One of `STEPS`: a number, or the name of what the code is given."""
        return str(self.steps[STEPS.index(name)]) if self.steps else f"%{name}"


def pool_text(vectors: CpuDevice, window: Window) -> Code:
    """The kernel."""
    return Code.of(f"{window.pool}_pool", [_kernel(vectors, window)], [])


def _around(pool: Pool) -> float:
    """What never counts."""
    return float("-inf") if pool == "max" else 0.0


def _kernel(vectors: CpuDevice, window: Window) -> Written:
    """The tiles from `begin` to before `end`."""
    t, pool = BlockText(vectors.lanes), window.pool
    lanes = t.lanes
    t.unpack(("x", "y"), SIZES)
    # Scratch holds the row that is made of rows, and how much each column counts.
    counts = t.at("%scratch", t.times(t.rounded_up("%kept", lanes), 4 * lanes))
    with t.steps("0", "%kept", lanes) as at:
        t.store(t.number(_around(pool)), t.at("%scratch", t.times(at, 4)))
    if pool == "average":
        with t.loop("0", "%out_width") as column:
            inside = _counted(t, window, column, "%before", "column")
            number = t.let(f"sitofp i64 {inside} to float")
            t(f"store float {number}, ptr {t.let(f'getelementptr float, ptr {counts}, i64 {column}')}, align 4")
    inner = t.at("%scratch", t.times("%before", 4))
    with t.loop("%begin", "%end") as tile:
        row_block, left = t.rest(tile, "%row_blocks"), t.quotient(tile, "%row_blocks")
        channel, image = t.rest(left, "%channels"), t.quotient(left, "%channels")
        source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(channel, "%channel_step"))
        first = t.times(row_block, "%block_rows")
        with t.loop(first, t.least("%out_height", t.plus(first, "%block_rows"))) as row:
            start = t.minus(t.times(row, window["stride_rows"]), "%above")
            low, high = (_taps_below(t, window, start, end, "row") for end in ("0", "%height"))
            _rows(t, window, t.at(source, t.times(start, "%row_step")), low, high, inner)
            there = t.at("%y", t.times(t.plus(t.times(left, "%out_height"), row), t.times("%out_width", 4)))
            weight = ""
            if pool == "average":
                inside = _counted(t, window, row, "%above", "row")
                weight = t.spread(t.let(f"sitofp i64 {inside} to float"))
            with t.steps("0", "%out_width", lanes) as column:
                found = _columns(t, window, t.at("%scratch", t.times(t.times(column, window["stride_columns"]), 4)))
                if pool == "average":
                    found = t.div(found, t.mul(weight, t.load(t.at(counts, t.times(column, 4)))))
                t.store_where(t.lanes_within(column, "%out_width"), found, t.at(there, t.times(column, 4)))
    return t.function(KERNEL), tuple(t.used)


def _taken(t: BlockText, pool: Pool, x: str, y: str) -> str:
    return t.intrinsic("maximum", x, y) if pool == "max" else t.add(x, y)


def _rows(t: BlockText, window: Window, line: str, low: str, high: str, onto: str) -> None:
    """Rows that lie a dilation apart, from a window's tap to before another, taken together."""
    step = t.times(window["dilation_rows"], "%row_step")
    dense = t.let("icmp eq i64 %column_step, 4")
    nothing = t.number(_around(window.pool))

    def taken(column: str, count: int, read: Callable[[str, int], str]) -> None:
        with t.carried(low, high, [nothing] * count) as (tap, sums):
            here = t.at(t.at(line, t.times(tap, step)), t.times(column, "%column_step"))
            for i in range(count):
                sums[i] = _taken(t, window.pool, sums[i], read(here, i))
        for i, x in enumerate(sums):
            t.store(x, t.at(onto, t.plus(t.times(column, 4), 4 * t.lanes * i)))

    whole = t.chosen(dense, t.quotient("%width", TOGETHER * t.lanes), 0)
    with t.loop("0", whole) as group:
        taken(t.times(group, TOGETHER * t.lanes), TOGETHER, lambda here, i: t.load(t.at(here, 4 * t.lanes * i)))
    with t.steps(t.times(whole, TOGETHER * t.lanes), "%width", t.lanes) as column:
        mask = t.lanes_within(column, "%width")
        with t.when(dense):
            taken(column, 1, lambda here, _: t.load_where(mask, here, nothing))
        with t.otherwise(dense):
            taken(column, 1, lambda here, _: t.gather_where(mask, here, "%column_step", nothing))


def _columns(t: BlockText, window: Window, start: str) -> str:
    """A vector of windows along a row, through their columns."""
    nothing = t.number(_around(window.pool))
    if window.steps:
        columns, stride, dilation = (int(window[f"{of}_columns"]) for of in ("window", "stride", "dilation"))
        found = nothing
        for tap in range(columns):
            found = _taken(t, window.pool, found, _apart(t, t.at(start, 4 * tap * dilation), stride))
        return found
    kept = t.variable(nothing)
    for stride, how in ((1, "eq"), (2, "eq"), (0, "sgt")):
        with t.when(t.let(f"icmp {how} i64 %stride_columns, {stride or 2}")):
            with t.carried("0", "%window_columns", [nothing]) as (tap, sums):
                place = t.at(start, t.times(t.times(tap, "%dilation_columns"), 4))
                sums[0] = _taken(t, window.pool, sums[0], _apart(t, place, stride))
            t.put(sums[0], kept)
    return t.get(kept)


def _apart(t: BlockText, place: str, stride: int) -> str:
    """A vector of numbers that lie as far apart as windows are; a stride of 0 is one that is known later."""
    if stride == 1:
        return t.load(place)
    if stride == 2:
        return t.shuffle(t.load(place), t.load(t.at(place, 4 * t.lanes)), range(0, 2 * t.lanes, 2))
    always = t.let(f"icmp eq {t.whole} zeroinitializer, zeroinitializer")
    return t.gather_where(always, place, t.times(stride or "%stride_columns", 4), "zeroinitializer")


def _taps_below(t: BlockText, window: Window, start: str, end: str, axis: str) -> str:
    """Taps of a window before an end: a quotient that is rounded up, also where it is negative."""
    reached = t.rounded_up(t.most(0, t.minus(end, start)), window[f"dilation_{axis}s"])
    return t.least(window[f"window_{axis}s"], reached)


def _counted(t: BlockText, window: Window, at: str, before: str, axis: str) -> str:
    """How many taps lie inside along an axis, of the window at a place."""
    start = t.minus(t.times(at, window[f"stride_{axis}s"]), before)
    low, high = (_taps_below(t, window, start, f"%{axis}_{end}", axis) for end in ("low", "high"))
    return t.minus(high, low)

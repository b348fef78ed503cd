"""Pools as LLVM's text: one code for every size, window, stride, dilation and padding.

A tile is some rows of one channel of the result. For each of them the rows that its windows see are taken together into
one row with what never counts around it; then the columns of that row are, as far apart as windows are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dovetail.kernels.conv_block import KERNEL, BlockText, Code, Written
from dovetail.kernels.vector import Vectors

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
"""Vectors of a row that go through the rows of a window at once."""


def pool_text(vectors: Vectors, pool: Pool) -> Code:
    """The kernel."""
    return Code.of(f"{pool}_pool", [_kernel(vectors, pool)], [])


def _around(pool: Pool) -> float:
    """What never counts."""
    return float("-inf") if pool == "max" else 0.0


def _kernel(vectors: Vectors, pool: Pool) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(vectors.lanes)
    lanes = t.lanes
    t.unpack(("x", "y"), SIZES)
    # Scratch holds the row that is made of rows, and how much each column counts.
    counts = t.at("%scratch", t.times(t.rounded_up("%kept", lanes), 4 * lanes))
    with t.steps("0", "%kept", lanes) as at:
        t.store(t.number(_around(pool)), t.at("%scratch", t.times(at, 4)))
    if pool == "average":
        with t.loop("0", "%out_width") as column:
            inside = _counted(t, column, "%stride_columns", "%before", "%dilation_columns", "%window_columns", "column")
            number = t.let(f"sitofp i64 {inside} to float")
            t(f"store float {number}, ptr {t.let(f'getelementptr float, ptr {counts}, i64 {column}')}, align 4")
    inner = t.at("%scratch", t.times("%before", 4))
    with t.loop("%begin", "%end") as tile:
        row_block, left = t.rest(tile, "%row_blocks"), t.quotient(tile, "%row_blocks")
        channel, image = t.rest(left, "%channels"), t.quotient(left, "%channels")
        source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(channel, "%channel_step"))
        first = t.times(row_block, "%block_rows")
        with t.loop(first, t.least("%out_height", t.plus(first, "%block_rows"))) as row:
            start = t.minus(t.times(row, "%stride_rows"), "%above")
            low = _taps_below(t, start, "0", "%dilation_rows", "%window_rows")
            high = _taps_below(t, start, "%height", "%dilation_rows", "%window_rows")
            _rows(t, pool, t.at(source, t.times(start, "%row_step")), low, high, inner)
            there = t.at("%y", t.times(t.plus(t.times(left, "%out_height"), row), t.times("%out_width", 4)))
            weight = ""
            if pool == "average":
                inside = _counted(t, row, "%stride_rows", "%above", "%dilation_rows", "%window_rows", "row")
                weight = t.spread(t.let(f"sitofp i64 {inside} to float"))
            with t.steps("0", "%out_width", lanes) as column:
                found = _columns(t, pool, t.at("%scratch", t.times(t.times(column, "%stride_columns"), 4)))
                if pool == "average":
                    found = t.div(found, t.mul(weight, t.load(t.at(counts, t.times(column, 4)))))
                t.store_where(t.lanes_within(column, "%out_width"), found, t.at(there, t.times(column, 4)))
    return t.function(KERNEL), tuple(t.used)


def _taken(t: BlockText, pool: Pool, x: str, y: str) -> str:
    return t.intrinsic("maximum", x, y) if pool == "max" else t.add(x, y)


def _rows(t: BlockText, pool: Pool, line: str, low: str, high: str, onto: str) -> None:
    """Rows that lie `dilation_rows` apart, from a window's tap to before another, taken together."""
    step = t.times("%dilation_rows", "%row_step")
    dense = t.let("icmp eq i64 %column_step, 4")
    nothing = t.number(_around(pool))

    def taken(column: str, count: int, read: Callable[[str, int], str]) -> None:
        slots = [t.variable(nothing) for _ in range(count)]
        with t.loop(low, high) as tap:
            here = t.at(t.at(line, t.times(tap, step)), t.times(column, "%column_step"))
            for i, slot in enumerate(slots):
                t.put(_taken(t, pool, t.get(slot), read(here, i)), slot)
        for i, slot in enumerate(slots):
            t.store(t.get(slot), t.at(onto, t.plus(t.times(column, 4), 4 * t.lanes * i)))

    whole = t.chosen(dense, t.quotient("%width", TOGETHER * t.lanes), 0)
    with t.loop("0", whole) as group:
        taken(t.times(group, TOGETHER * t.lanes), TOGETHER, lambda here, i: t.load(t.at(here, 4 * t.lanes * i)))
    with t.steps(t.times(whole, TOGETHER * t.lanes), "%width", t.lanes) as column:
        mask = t.lanes_within(column, "%width")
        with t.when(dense):
            taken(column, 1, lambda here, _: t.load_where(mask, here, nothing))
        with t.otherwise(dense):
            taken(column, 1, lambda here, _: t.gather_where(mask, here, "%column_step", nothing))


def _columns(t: BlockText, pool: Pool, start: str) -> str:
    """A vector of windows along a row, through their columns."""
    found = t.variable(t.number(_around(pool)))
    one, two = (t.let(f"icmp eq i64 %stride_columns, {n}") for n in (1, 2))
    far = t.let("icmp sgt i64 %stride_columns, 2")
    step = t.times("%stride_columns", 4)
    always = t.let(f"icmp eq {t.whole} zeroinitializer, zeroinitializer")
    with t.loop("0", "%window_columns") as tap:
        place = t.at(start, t.times(t.times(tap, "%dilation_columns"), 4))
        with t.when(one):
            t.put(_taken(t, pool, t.get(found), t.load(place)), found)
        with t.when(two):
            pair = t.load(place), t.load(t.at(place, 4 * t.lanes))
            t.put(_taken(t, pool, t.get(found), t.shuffle(*pair, range(0, 2 * t.lanes, 2))), found)
        with t.when(far):
            apart = t.gather_where(always, place, step, "zeroinitializer")
            t.put(_taken(t, pool, t.get(found), apart), found)
    return t.get(found)


def _taps_below(t: BlockText, start: str, end: str, dilation: str, window: str) -> str:
    """Taps of a window before an end: a quotient that is rounded up, also where it is negative."""
    return t.least(window, t.rounded_up(t.most(0, t.minus(end, start)), dilation))


def _counted(t: BlockText, at: str, stride: str, before: str, dilation: str, window: str, axis: str) -> str:
    """How many taps lie inside along an axis, of the window at a place."""
    start = t.minus(t.times(at, stride), before)
    low, high = (_taps_below(t, start, f"%{axis}_{end}", dilation, window) for end in ("low", "high"))
    return t.minus(high, low)

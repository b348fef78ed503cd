"""Pools as LLVM's text: one code for every size, window, stride, dilation and padding.

A tile is a block of places of one channel. What the block sees is laid out once, with what never counts around it; then
the taps of the window are vectors that are taken together.
"""

from __future__ import annotations

from typing import Literal

from dovetail.kernels.conv_block import (
    KERNEL,
    WINDOW,
    BlockText,
    Code,
    Written,
    gather_text,
    write_gather,
    write_layout,
    write_offsets,
)
from dovetail.kernels.vector import Vectors

Pool = Literal["max", "average"]
SIZES = (*WINDOW, "channels", "image_step", "channel_step", "row_low", "row_high", "column_low", "column_high")
"""The sizes that the code is given, in their order; what an average counts lies from low to below high."""
TOGETHER = 4
"""Vectors of places that go through the taps at once."""


def pool_text(vectors: Vectors, pool: Pool) -> Code:
    """The kernel."""
    return Code.of(f"{pool}_pool", [_kernel(vectors, pool)], [gather_text(vectors, _around(pool))])


def _around(pool: Pool) -> float:
    """What never counts."""
    return float("-inf") if pool == "max" else 0.0


def _kernel(vectors: Vectors, pool: Pool) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(vectors.lanes)
    lanes = t.lanes
    for index, name in enumerate(["x", "y", *SIZES]):
        t(f"%{name} = load {'ptr' if index < 2 else 'i64'}, ptr {t.at('%arguments', 8 * index)}, align 8")
    # Scratch holds the offsets of taps, how much each column counts, the results of a block, and what it sees.
    of = write_layout(t)
    counts = t.at("%scratch", t.times(t.rounded_up(of.taps, 8), 64))
    results = t.at(counts, t.times(t.plus(t.rounded_up("%block_columns", lanes), 1), 4 * lanes))
    seen = t.at(results, t.times(t.plus(t.rounded_up(of.run, lanes), TOGETHER), 4 * lanes))
    write_offsets(t, of, "%scratch")
    with t.loop("%begin", "%end") as tile:
        column_block, left = t.rest(tile, "%column_blocks"), t.quotient(tile, "%column_blocks")
        row_block, left = t.rest(left, "%row_blocks"), t.quotient(left, "%row_blocks")
        channel, image = t.rest(left, "%channels"), t.quotient(left, "%channels")
        first_row, first_column = t.times(row_block, "%block_rows"), t.times(column_block, "%block_columns")
        source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(channel, "%channel_step"))
        write_gather(t, of, source, seen, first_row, first_column, _around(pool))
        rows = t.least("%block_rows", t.minus("%out_height", first_row))
        columns = t.least("%block_columns", t.minus("%out_width", first_column))
        length = t.plus(t.times(t.minus(rows, 1), of.pitch), columns)
        with t.steps("0", length, TOGETHER * lanes) as start:
            _together(t, pool, of.taps, t.at(seen, t.times(start, 4)), t.at(results, t.times(start, 4)))
        if pool == "average":
            with t.loop("0", columns) as column:
                at = t.plus(first_column, column)
                inside = _counted(t, at, "%stride_columns", "%before", "%dilation_columns", "%window_columns", "column")
                number = t.let(f"sitofp i64 {inside} to float")
                t(f"store float {number}, ptr {t.let(f'getelementptr float, ptr {counts}, i64 {column}')}, align 4")
        area = t.times("%out_height", "%out_width")
        corner = t.plus(t.times(first_row, "%out_width"), first_column)
        target = t.at("%y", t.times(t.plus(t.times(left, area), corner), 4))
        with t.loop("0", rows) as row:
            here = t.at(results, t.times(row, t.times(of.pitch, 4)))
            there = t.at(target, t.times(t.times(row, "%out_width"), 4))
            weight = ""
            if pool == "average":
                at = t.plus(first_row, row)
                inside = _counted(t, at, "%stride_rows", "%above", "%dilation_rows", "%window_rows", "row")
                weight = t.spread(t.let(f"sitofp i64 {inside} to float"))
            with t.steps("0", columns, lanes) as column:
                by = t.times(column, 4)
                found = t.load(t.at(here, by))
                if pool == "average":
                    found = t.div(found, t.mul(weight, t.load(t.at(counts, by))))
                t.store_where(t.lanes_within(column, columns), found, t.at(there, by))
    return t.function(KERNEL), tuple(t.used)


def _together(t: BlockText, pool: Pool, taps: str, seen: str, onto: str) -> None:
    """Some vectors of places through all taps."""
    first = t.number(_around(pool))
    sums = [t.variable(first) for _ in range(TOGETHER)]
    with t.loop("0", taps) as tap:
        offset = t.let(f"load i64, ptr {t.let(f'getelementptr i64, ptr %scratch, i64 {tap}')}, align 8")
        place = t.at(seen, offset)
        for i, slot in enumerate(sums):
            x, so_far = t.load(t.at(place, 4 * t.lanes * i)), t.get(slot)
            t.put(t.intrinsic("maximum", so_far, x) if pool == "max" else t.add(so_far, x), slot)
    for i, slot in enumerate(sums):
        t.store(t.get(slot), t.at(onto, 4 * t.lanes * i))


def _counted(t: BlockText, at: str, stride: str, before: str, dilation: str, window: str, axis: str) -> str:
    """How many taps lie inside along an axis, of the window at a place."""
    start = t.minus(t.times(at, stride), before)

    def below(end: str) -> str:
        """Taps before an end: a quotient that is rounded up, also where it is negative."""
        distance = t.most(0, t.minus(end, start))
        return t.least(window, t.rounded_up(distance, dilation))

    return t.minus(below(f"%{axis}_high"), below(f"%{axis}_low"))

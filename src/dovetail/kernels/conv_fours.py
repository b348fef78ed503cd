"""What a block of patches sees of an image, where patches lie four pixels apart: one line of pixels is read once and
dealt out to four planes."""

from __future__ import annotations

from dovetail.kernels.conv_block import BlockText, Layout, Written, words
from dovetail.kernels.vector import Vectors

APART = 4
"""Pixels between patches."""


def fours_name(lanes: int) -> str:
    """The function that deals out the lines of one channel."""
    return f"@fours.{lanes}"


def write_fours(t: BlockText, of: Layout, source: str, onto: str, first_row: str, first_column: str) -> None:
    """Instructions that lay out what a block sees of one channel whose pixels lie side by side."""
    line = t.minus(t.times(first_row, APART), "%above")
    column = t.minus(t.times(first_column, APART), "%before")
    # Behind the last patch's own lines it sees so many of the next.
    lines = t.plus(t.times(t.minus(of.rows, 1), APART), t.minus("%window_rows", APART))
    given = ["%height", "%width", "%row_step", line, column, lines, t.times(of.pitch, 4), t.times(of.plane, 4)]
    t(f"call void {fours_name(t.lanes)}(ptr {source}, ptr {onto}, {words(given)})")


def fours_text(vectors: Vectors) -> Written:
    """The function: planes for the phases of lines and columns, as `conv_block.write_gather` lays them out."""
    t = BlockText(vectors.lanes)
    lanes = t.lanes
    even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
    columns = t.quotient("%pitch", 4)
    with t.steps("0", columns, lanes) as column:
        start = t.plus("%first_column", t.times(column, APART))
        masks = [t.lanes_within(t.plus(start, i * lanes), "%width") for i in range(APART)]
        own = t.lanes_within(column, columns)
        with t.loop("0", "%lines") as number:
            line = t.plus("%first_row", number)
            inside = t.let(f"icmp ult i64 {line}, %height")
            plane = t.times(t.times(t.rest(number, APART), APART), "%plane")
            row = t.times(t.quotient(number, APART), "%pitch")
            there = t.at("%s", t.plus(t.plus(plane, row), t.times(column, 4)))
            with t.when(inside):
                here = t.at(t.at("%x", t.times(line, "%row_step")), t.times(start, 4))
                found = [t.load_where(mask, t.at(here, 4 * i * lanes)) for i, mask in enumerate(masks)]
                halves = [
                    [t.shuffle(x, y, order) for x, y in zip(found[::2], found[1::2], strict=True)]
                    for order in (even, odd)
                ]
                dealt = [t.shuffle(first, second, order) for order in (even, odd) for first, second in halves]
                for phase, x in enumerate(dealt):
                    t.store_where(own, x, t.at(there, t.times("%plane", phase)))
            with t.otherwise(inside):
                for phase in range(APART):
                    t.store_where(own, t.number(0.0), t.at(there, t.times("%plane", phase)))
    names = "height width row_step first_row first_column lines pitch plane"
    header = (
        f"internal void {fours_name(lanes)}(ptr noalias readonly %x, ptr noalias %s, "
        f"{', '.join(f'i64 %{n}' for n in names.split())}) noinline nounwind"
    )
    return t.function(header), tuple(t.used)

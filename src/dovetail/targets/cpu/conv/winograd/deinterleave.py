"""What a block of patches sees of an image, where patches lie two or four pixels apart: a line of pixels is read once
and dealt out to as many planes."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.module import Written
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.patch import BlockText, Layout, words, write_gather


def _name(lanes: int, apart: int) -> str:
    """The function that deals out the lines of one channel."""
    return f"@dealt.{lanes}.{apart}"


def write_dealt(
    t: BlockText, of: Layout, apart: int, source: str, onto: str, first_row: str, first_column: str
) -> None:
    """Instructions that lay out what a block sees of one channel, as `write_gather` does where pixels lie apart."""
    line = t.minus(t.times(first_row, apart), "%above")
    column = t.minus(t.times(first_column, apart), "%before")
    # Behind the last patch's own lines it sees so many of the next.
    lines = t.plus(t.times(t.minus(of.rows, 1), apart), t.minus("%window_rows", apart))
    given = ["%height", "%width", "%row_step", line, column, lines, t.times(of.pitch, 4), t.times(of.plane, 4)]
    dense = t.let("icmp eq i64 %column_step, 4")
    with t.when(dense):
        t(f"call void {_name(t.lanes, apart)}(ptr {source}, ptr {onto}, {words(given)})")
    with t.otherwise(dense):
        write_gather(t, of, source, onto, first_row, first_column)


def dealt_text(vectors: CpuDevice, apart: int) -> Written:
    """The function: planes for the phases of lines and columns."""
    t = BlockText(vectors.lanes)
    lanes = t.lanes
    columns = t.quotient("%pitch", 4)
    with t.steps("0", columns, lanes) as column:
        start = t.plus("%first_column", t.times(column, apart))
        masks = [t.lanes_within(t.plus(start, i * lanes), "%width") for i in range(apart)]
        own = t.lanes_within(column, columns)
        with t.loop("0", "%lines") as number:
            line = t.plus("%first_row", number)
            inside = t.let(f"icmp ult i64 {line}, %height")
            plane = t.times(t.times(t.rest(number, apart), apart), "%plane")
            row = t.times(t.quotient(number, apart), "%pitch")
            there = t.at("%s", t.plus(t.plus(plane, row), t.times(column, 4)))
            with t.when(inside):
                here = t.at(t.at("%x", t.times(line, "%row_step")), t.times(start, 4))
                found = [t.load_where(mask, t.at(here, 4 * i * lanes)) for i, mask in enumerate(masks)]
                for phase, x in enumerate(_dealt(t, found)):
                    t.store_where(own, x, t.at(there, t.times("%plane", phase)))
            with t.otherwise(inside):
                for phase in range(apart):
                    t.store_where(own, t.number(0.0), t.at(there, t.times("%plane", phase)))
    names = "height width row_step first_row first_column lines pitch plane"
    header = (
        f"void {_name(lanes, apart)}(ptr noalias readonly %x, ptr noalias %s, "
        f"{', '.join(f'i64 %{n}' for n in names.split())}) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _dealt(t: BlockText, found: Sequence[str]) -> list[str]:
    """Neighbours in one, two or four vectors, dealt out to as many."""
    if len(found) == 1:
        return list(found)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    even = _dealt(t, [t.shuffle(x, y, range(0, 2 * t.lanes, 2)) for x, y in pairs])
    odd = _dealt(t, [t.shuffle(x, y, range(1, 2 * t.lanes, 2)) for x, y in pairs])
    return [x for both in zip(even, odd, strict=True) for x in both]

"""What places of a sliding window see, laid out by taps' columns: neighbours side by side, across the ends of rows too.

For each column of the window there is one plane for each phase of the rows' stride, as wide as the result. Rows of a
plane follow each other without anything between them, so that any places in a row of places are numbers in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.codegen.llvm.module import Written
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.patch import BlockText, words


@dataclass(frozen=True, slots=True)
class Columns:
    """How it lies: names of whole numbers; `plane` and `channel` are bytes."""

    phases: str
    rows: str
    plane: str
    channel: str

    def offset(self, t: BlockText, tap: str) -> str:
        """How many bytes behind a place's own a tap sees, at its first column."""
        i, j = t.quotient(tap, "%window_columns"), t.rest(tap, "%window_columns")
        down = t.times(i, "%dilation_rows")
        plane = t.plus(t.times(j, self.phases), t.rest(down, "%stride_rows"))
        row = t.times(t.quotient(down, "%stride_rows"), t.times("%out_width", 4))
        return t.plus(t.times(plane, self.plane), row)

    def write(self, t: BlockText, source: str, onto: str, first_row: str) -> None:
        """Instructions that lay out what the rows of a block see of one channel."""
        given = [
            "%height", "%width", "%row_step", "%column_step", "%stride_rows", "%stride_columns", "%dilation_columns",
            t.minus(t.times(first_row, "%stride_rows"), "%above"), t.minus(0, "%before"), "%window_columns",
            self.phases, self.rows, "%out_width",
        ]  # fmt: skip
        t(f"call void {_name(t.lanes)}(ptr {source}, ptr {onto}, {words(given)})")


def write_planes(t: BlockText) -> Columns:
    """Instructions for the layout of a block of rows."""
    reach = t.times(t.minus("%window_rows", 1), "%dilation_rows")
    phases = t.least("%stride_rows", t.plus(reach, 1))
    rows = t.plus("%block_rows", t.quotient(reach, "%stride_rows"))
    plane = t.times(t.times(rows, "%out_width"), 4)
    return Columns(phases, rows, plane, t.times(t.times(phases, "%window_columns"), plane))


def _name(lanes: int) -> str:
    """The function that lays out one channel."""
    return f"@columns.{lanes}"


def columns_text(vectors: CpuDevice) -> Written:
    """The function that lays out one channel."""
    t = BlockText(vectors.lanes)
    lanes = t.lanes
    packed = t.let("icmp eq i64 %element, 4")
    near = [(n, t.let(f"and i1 {packed}, {t.let(f'icmp eq i64 %column_stride, {n}')}")) for n in (1, 2)]
    far = t.let(f"xor i1 {t.let(f'or i1 {near[0][1]}, {near[1][1]}')}, true")
    step = t.times("%column_stride", "%element")
    with t.loop("0", "%taps") as tap, t.steps("0", "%columns", lanes) as column:
        start = t.plus(t.plus("%first_column", t.times(tap, "%dilation")), t.times(column, "%column_stride"))
        own = t.lanes_within(column, "%columns")
        plane = t.times(t.times(t.times(tap, "%phases"), "%rows"), "%columns")
        onto = t.at("%s", t.times(t.plus(plane, column), 4))
        from_column = t.at("%x", t.times(start, "%element"))
        for stride, holds in near:
            masks = [t.lanes_within(t.plus(start, i * lanes), "%width") for i in range(stride)]

            def read(place: str, stride: int = stride, masks: list[str] = masks) -> str:
                parts = [t.load_where(mask, t.at(place, 4 * i * lanes)) for i, mask in enumerate(masks)]
                return parts[0] if stride == 1 else t.shuffle(parts[0], parts[1], range(0, 2 * lanes, 2))

            with t.when(holds):
                _lines(t, from_column, onto, own, read)
        with t.when(far):
            # Columns whose place in the image, first + column * stride, is inside it.
            low = t.rounded_up(t.most(0, t.minus(0, start)), "%column_stride")
            high = t.rounded_up(t.most(0, t.minus("%width", start)), "%column_stride")
            mask = t.lanes_within(t.minus(0, low), t.minus(high, low))
            _lines(t, from_column, onto, own, lambda place: t.gather_where(mask, place, step, "zeroinitializer"))
    names = "height width row_step element row_stride column_stride dilation first_row first_column taps phases"
    header = (
        f"void {_name(lanes)}(ptr noalias readonly %x, ptr noalias %s, "
        f"{', '.join(f'i64 %{n}' for n in (*names.split(), 'rows', 'columns'))}) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _lines(t: BlockText, source: str, onto: str, own: str, read: Callable[[str], str]) -> None:
    """The rows of every phase, at one vector of columns."""
    pitch = t.times("%columns", 4)
    with t.loop("0", "%phases") as phase:
        there = t.at(onto, t.times(t.times(phase, "%rows"), pitch))
        first = t.plus("%first_row", phase)
        with t.loop("0", "%rows") as row:
            line = t.plus(first, t.times(row, "%row_stride"))
            inside = t.let(f"icmp ult i64 {line}, %height")
            target = t.at(there, t.times(row, pitch))
            with t.when(inside):
                t.store_where(own, read(t.at(source, t.times(line, "%row_step"))), target)
            with t.otherwise(inside):
                t.store_where(own, "zeroinitializer", target)

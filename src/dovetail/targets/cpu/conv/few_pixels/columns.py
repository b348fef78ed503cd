"""What pixels of a sliding window see, packed by columns of taps: contiguous, across the ends of rows too.

For each column of the window there is one plane for each phase of the rows' stride, as wide as the result. Rows of a
plane follow each other without a gap, so that any successive pixels see successive elements.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Mask, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.patches import WindowArgs


@dataclass(frozen=True, slots=True)
class Columns:
    """The layout of a block of rows; `plane` and `channel` are bytes."""

    phases: I64
    rows: I64
    plane: I64
    channel: I64

    @staticmethod
    def of(t: VectorBuilder, a: WindowArgs) -> Columns:
        reach = t.mul(t.sub(a.window_rows, 1), a.dilation_rows)
        phases = t.smin(a.stride_rows, t.add(reach, 1))
        rows = t.add(a.block_rows, t.sdiv(reach, a.stride_rows))
        plane = t.mul(t.mul(rows, a.out_width), 4)
        return Columns(phases, rows, plane, t.mul(t.mul(phases, a.window_columns), plane))

    def offset(self, t: VectorBuilder, a: WindowArgs, tap: I64) -> I64:
        """Bytes from a pixel's own position to what a tap reads."""
        i, j = t.sdiv(tap, a.window_columns), t.srem(tap, a.window_columns)
        down = t.mul(i, a.dilation_rows)
        plane = t.add(t.mul(j, self.phases), t.srem(down, a.stride_rows))
        row = t.mul(t.sdiv(down, a.stride_rows), t.mul(a.out_width, 4))
        return t.add(t.mul(plane, self.plane), row)

    def pack(self, t: VectorBuilder, a: WindowArgs, source: Ptr, onto: Ptr, first_row: I64) -> None:
        """Pack what the rows of a block see of one channel."""
        t.call(
            _signature(t.lanes), source, onto, a.height, a.width, a.row_step, a.column_step, a.stride_rows,
            a.stride_columns, a.dilation_columns, t.sub(t.mul(first_row, a.stride_rows), a.above),
            t.sub(0, a.before), a.window_columns, self.phases, self.rows, a.out_width,
        )  # fmt: skip


def _signature(lanes: int) -> Signature:
    names = "height width row_step element row_stride column_stride dilation first_row first_column taps phases"
    integers = [Parameter("i64", name) for name in (*names.split(), "rows", "columns")]
    return Signature(
        f"columns.{lanes}", (Parameter("ptr", "x", "noalias readonly"), Parameter("ptr", "s", "noalias"), *integers)
    )


def pack_columns(device: CpuDevice) -> Function:
    """Pack what the rows of a block see of one channel."""
    t = VectorBuilder(device)
    lanes, width, columns = t.lanes, I64("%width"), I64("%columns")
    element, stride = I64("%element"), I64("%column_stride")
    packed = t.icmp("eq", element, 4)
    near = [(n, t.and_(packed, t.icmp("eq", stride, n))) for n in (1, 2)]
    far = t.not_(t.or_(near[0][1], near[1][1]))
    step = t.mul(stride, element)
    with t.loop(0, I64("%taps")) as tap, t.steps(0, columns, lanes) as column:
        start = t.add(t.add(I64("%first_column"), t.mul(tap, I64("%dilation"))), t.mul(column, stride))
        own = t.lanes_within(column, columns)
        plane = t.mul(t.mul(t.mul(tap, I64("%phases")), I64("%rows")), columns)
        onto = t.ptr_add(Ptr("%s"), t.mul(t.add(plane, column), 4))
        from_column = t.ptr_add(Ptr("%x"), t.mul(start, element))
        for apart, holds in near:
            masks = [t.lanes_within(t.add(start, i * lanes), width) for i in range(apart)]

            def read(pixel: Ptr, apart: int = apart, masks: list[Mask] = masks) -> Vec:
                parts = [t.load_masked(mask, t.ptr_add(pixel, t.bytes * i)) for i, mask in enumerate(masks)]
                return parts[0] if apart == 1 else t.shuffle(parts[0], parts[1], range(0, 2 * lanes, 2))

            with t.when(holds):
                _rows(t, from_column, onto, own, read)
        with t.when(far):
            # Columns whose position in the image, first + column * stride, is inside it.
            low = t.ceil_div(t.smax(0, t.sub(0, start)), stride)
            high = t.ceil_div(t.smax(0, t.sub(width, start)), stride)
            mask = t.lanes_within(t.sub(0, low), t.sub(high, low))
            _rows(t, from_column, onto, own, lambda pixel: t.gather(mask, pixel, step, ZERO))
    return t.function(_signature(lanes))


def _rows(t: VectorBuilder, source: Ptr, onto: Ptr, own: Mask, read: Callable[[Ptr], Vec]) -> None:
    """The rows of every phase, at one vector of columns."""
    rows, pitch = I64("%rows"), t.mul(I64("%columns"), 4)
    with t.loop(0, I64("%phases")) as phase:
        there = t.ptr_add(onto, t.mul(t.mul(phase, rows), pitch))
        first = t.add(I64("%first_row"), phase)
        with t.loop(0, rows) as row:
            line = t.add(first, t.mul(row, I64("%row_stride")))
            inside = t.icmp("ult", line, I64("%height"))
            target = t.ptr_add(there, t.mul(row, pitch))
            with t.when(inside):
                t.store_masked(own, read(t.ptr_add(source, t.mul(line, I64("%row_step")))), target)
            with t.unless(inside):
                t.store_masked(own, ZERO, target)

"""The patches of Winograd's scheme, which are two or four pixels apart: a line of pixels is read once and deinterleaved
to as many planes."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.patches import PatchLayout, WindowArgs, write_patch
from dovetail.targets.cpu.conv.winograd.scheme import Scheme


def _signature(lanes: int, down: int, across: int) -> Signature:
    """The function that deinterleaves the lines of one channel."""
    names = "height width row_step first_row first_column lines pitch plane"
    return Signature(
        f"dealt.{lanes}.{down}.{across}",
        (
            Parameter("ptr", "x", "noalias readonly"),
            Parameter("ptr", "s", "noalias"),
            *[Parameter("i64", name) for name in names.split()],
        ),
    )


def write_deinterleaved(
    t: VectorBuilder,
    a: WindowArgs,
    of: PatchLayout,
    scheme: Scheme,
    source: Ptr,
    onto: Ptr,
    first_row: I64,
    first_column: I64,
) -> None:
    """Pack what a block sees of one channel; where pixels are not contiguous, phase by phase."""
    down, across = scheme.down.out, scheme.across.out
    line = t.sub(t.mul(first_row, down), a.above)
    column = t.sub(t.mul(first_column, across), a.before)
    lines = t.add(t.mul(t.sub(a.block_rows, 1), down), a.window_rows)
    pitch, plane = t.mul(of.pitch, 4), t.mul(of.plane, 4)
    dense = t.icmp("eq", a.column_step, 4)
    with t.when(dense):
        signature = _signature(t.lanes, down, across)
        t.call(signature, source, onto, a.height, a.width, a.row_step, line, column, lines, pitch, plane)
    with t.unless(dense):
        write_patch(t, a, of, source, onto, first_row, first_column)


def deinterleave(device: CpuDevice, down: int, across: int) -> Function:
    """Pack planes for the phases of lines and columns, with patches `down` lines and `across` columns apart."""
    t = VectorBuilder(device)
    lanes = t.lanes
    width, pitch, plane_step = I64("%width"), I64("%pitch"), I64("%plane")
    columns = t.sdiv(pitch, 4)
    with t.steps(0, columns, lanes) as column:
        start = t.add(I64("%first_column"), t.mul(column, across))
        masks = [t.lanes_within(t.add(start, i * lanes), width) for i in range(across)]
        own = t.lanes_within(column, columns)
        with t.loop(0, I64("%lines")) as number:
            line = t.add(I64("%first_row"), number)
            inside = t.icmp("ult", line, I64("%height"))
            plane = t.mul(t.mul(t.srem(number, down), across), plane_step)
            row = t.mul(t.sdiv(number, down), pitch)
            there = t.ptr_add(Ptr("%s"), t.add(t.add(plane, row), t.mul(column, 4)))
            with t.when(inside):
                here = t.ptr_add(t.ptr_add(Ptr("%x"), t.mul(line, I64("%row_step"))), t.mul(start, 4))
                found = [t.load_masked(mask, t.ptr_add(here, t.bytes * i)) for i, mask in enumerate(masks)]
                for phase, x in enumerate(_deinterleaved(t, found)):
                    t.store_masked(own, x, t.ptr_add(there, t.mul(plane_step, phase)))
            with t.unless(inside):
                for phase in range(across):
                    t.store_masked(own, t.constant(0.0), t.ptr_add(there, t.mul(plane_step, phase)))
    return t.function(_signature(lanes, down, across))


def _deinterleaved(t: VectorBuilder, found: Sequence[Vec]) -> list[Vec]:
    """Contiguous elements in one, two or four vectors, deinterleaved to as many."""
    if len(found) == 1:
        return list(found)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    even = _deinterleaved(t, [t.shuffle(x, y, range(0, 2 * t.lanes, 2)) for x, y in pairs])
    odd = _deinterleaved(t, [t.shuffle(x, y, range(1, 2 * t.lanes, 2)) for x, y in pairs])
    return [x for both in zip(even, odd, strict=True) for x in both]

"""The patches of a dilated window: as many of them interleave as pixels are skipped.

With dilation d and m results, patch T·d + c has the pixels T·m·d + c + d·k. Plane k mod m holds, at T·d + c, what tap k
of that patch sees: runs of d contiguous pixels. Tap k of a patch reads its plane ⌊k / m⌋ · d elements further.
"""

from __future__ import annotations

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.patches import PatchLayout, WindowArgs


def dilated_layout(t: VectorBuilder, a: WindowArgs) -> PatchLayout:
    """The layout of what a full block sees; strides are results of a patch."""
    over_rows = t.mul(t.sdiv(t.sub(a.window_rows, 1), a.stride_rows), a.dilation_rows)
    over_columns = t.mul(t.sdiv(t.sub(a.window_columns, 1), a.stride_columns), a.dilation_columns)
    rows, pitch = t.add(a.block_rows, over_rows), t.add(a.block_columns, over_columns)
    plane = t.mul(rows, pitch)
    channel = t.mul(t.mul(a.stride_rows, a.stride_columns), t.mul(plane, 4))
    run = t.add(t.mul(t.sub(a.block_rows, 1), pitch), a.block_columns)
    taps = t.mul(a.window_rows, a.window_columns)
    return PatchLayout(a.stride_rows, a.stride_columns, rows, pitch, plane, channel, taps, run)


def write_dilated_offsets(t: VectorBuilder, a: WindowArgs, of: PatchLayout, onto: Ptr) -> None:
    """List, for each tap, how many bytes after a patch's own position the tap reads."""
    with t.loop(0, a.window_rows) as i, t.loop(0, a.window_columns) as j:
        phase = t.add(t.mul(t.srem(i, a.stride_rows), a.stride_columns), t.srem(j, a.stride_columns))
        down = t.mul(t.sdiv(i, a.stride_rows), a.dilation_rows)
        across = t.mul(t.sdiv(j, a.stride_columns), a.dilation_columns)
        offset = t.mul(t.add(t.mul(phase, of.plane), t.add(t.mul(down, of.pitch), across)), 4)
        t.store_i64(offset, t.element(onto, "i64", t.add(t.mul(i, a.window_columns), j)))


def write_dilated(
    t: VectorBuilder, a: WindowArgs, of: PatchLayout, source: Ptr, onto: Ptr, first_row: I64, first_column: I64
) -> None:
    """Pack what a block sees of one channel; its first column is a multiple of the dilation."""
    with t.loop(0, a.stride_rows) as i, t.loop(0, a.stride_columns) as j:
        here = t.ptr_add(onto, t.mul(t.add(t.mul(i, a.stride_columns), j), t.mul(of.plane, 4)))
        column = t.add(t.mul(first_column, a.stride_columns), t.mul(j, a.dilation_columns))
        with t.loop(0, of.rows) as row:
            patch = t.add(first_row, row)
            turn, phase = t.sdiv(patch, a.dilation_rows), t.srem(patch, a.dilation_rows)
            skipped = t.mul(t.add(t.mul(turn, a.stride_rows), i), a.dilation_rows)
            line = t.sub(t.add(skipped, phase), a.above)
            width = t.select_int(t.icmp("ult", line, a.height), a.width, 0)
            t.call(
                _signature(t.lanes), t.ptr_add(source, t.mul(line, a.row_step)),
                t.ptr_add(here, t.mul(t.mul(row, of.pitch), 4)), width, a.column_step, t.sub(column, a.before),
                t.mul(a.stride_columns, a.dilation_columns), a.dilation_columns, of.pitch,
            )  # fmt: skip


def _signature(lanes: int) -> Signature:
    """The function that packs one line of one plane."""
    names = "width element first_column apart run columns"
    return Signature(
        f"runs.{lanes}",
        (
            Parameter("ptr", "x", "noalias readonly"),
            Parameter("ptr", "s", "noalias"),
            *[Parameter("i64", name) for name in names.split()],
        ),
    )


def pack_runs(device: CpuDevice) -> Function:
    """Pack runs of contiguous pixels, `apart` pixels from one to the next; a vector may reach into the next run, which
    overwrites it."""
    t = VectorBuilder(device)
    element, run, columns = I64("%element"), I64("%run"), I64("%columns")
    dense = t.icmp("eq", element, 4)
    with t.loop(0, columns, step=run) as first:
        start = t.add(I64("%first_column"), t.mul(t.sdiv(first, run), I64("%apart")))
        with t.steps(0, run, t.lanes) as within:
            column = t.add(start, within)
            mask = t.lanes_within(column, I64("%width"))
            pixel = t.ptr_add(Ptr("%x"), t.mul(column, element))
            there = t.ptr_add(Ptr("%s"), t.mul(t.add(first, within), 4))
            with t.when(dense):
                t.store(t.load_masked(mask, pixel), there)
            with t.unless(dense):
                t.store(t.gather(mask, pixel, element, ZERO), there)
    return t.function(_signature(t.lanes))


__all__ = ["dilated_layout", "pack_runs", "write_dilated", "write_dilated_offsets"]

"""The patches of Winograd's scheme, packed as its transforms read them.

Patches are two or four pixels apart: a line of pixels is read once and deinterleaved to as many planes. Those of a
dilated window interleave. With dilation d and m results, patch T·d + c has the pixels T·m·d + c + d·k. Plane k mod m
holds, at T·d + c, what tap k of that patch sees: runs of d contiguous pixels. Tap k of a patch reads its plane
⌊k / m⌋ · d elements further.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.patches import PatchLayout, WindowArgs, write_patch
from dovetail.targets.cpu.conv.winograd.scheme import Scheme


def _deinterleave_signature(lanes: int, down: int, across: int) -> Signature:
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
        signature = _deinterleave_signature(t.lanes, down, across)
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
                pixels = [t.load_masked(mask, t.ptr_add(here, t.bytes * i)) for i, mask in enumerate(masks)]
                for phase, x in enumerate(_deinterleaved(t, pixels)):
                    t.store_masked(own, x, t.ptr_add(there, t.mul(plane_step, phase)))
            with t.unless(inside):
                for phase in range(across):
                    t.store_masked(own, t.constant(0.0), t.ptr_add(there, t.mul(plane_step, phase)))
    return t.function(_deinterleave_signature(lanes, down, across))


def _deinterleaved(t: VectorBuilder, vectors: Sequence[Vec]) -> list[Vec]:
    """Contiguous elements in one, two or four vectors, deinterleaved to as many."""
    if len(vectors) == 1:
        return list(vectors)
    pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
    even = _deinterleaved(t, [t.shuffle(x, y, range(0, 2 * t.lanes, 2)) for x, y in pairs])
    odd = _deinterleaved(t, [t.shuffle(x, y, range(1, 2 * t.lanes, 2)) for x, y in pairs])
    return [x for both in zip(even, odd, strict=True) for x in both]


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
                _runs_signature(t.lanes), t.ptr_add(source, t.mul(line, a.row_step)),
                t.ptr_add(here, t.mul(t.mul(row, of.pitch), 4)), width, a.column_step, t.sub(column, a.before),
                t.mul(a.stride_columns, a.dilation_columns), a.dilation_columns, of.pitch,
            )  # fmt: skip


def _runs_signature(lanes: int) -> Signature:
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
    return t.function(_runs_signature(t.lanes))

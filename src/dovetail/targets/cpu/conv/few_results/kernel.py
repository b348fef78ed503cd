"""Convolution with fewer results than taps, as the gradient of filters is: images are filters, and taps are results.

A tile is one block of filters by some images, here channels of the forward pass. For each channel, here an image of the
batch, it transposes the filters to [pixel][filter] and packs what the window sees with zeros around. Register tiles sum
over the pixels of the window with filters in lanes; each reads its operands from L1. No copy for each result is made.
"""

from __future__ import annotations

from dovetail.codegen.llvm.arguments import Arguments, Region
from dovetail.codegen.llvm.function import Function
from dovetail.codegen.llvm.handles import I64, NULL, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, WORDS, KernelCode, assemble, kernel_function
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.few_results.tile import FewResultsTile, register_tiles, tile_signature
from dovetail.targets.cpu.conv.patches import pack_phase, pack_phase_signature
from dovetail.targets.cpu.conv.register_tile import RegisterTile, transpose_signature, transpose_sums
from dovetail.targets.cpu.gemm.f32.pair_pack import Layout, pack_function


@dataclass(frozen=True, slots=True)
class FewResultsArgs:
    """Sizes and strides; strides are bytes. The window is [rows, columns], the results are [lines, results]."""

    x: Ptr
    w: Ptr
    y: Ptr
    images: I64
    channels: I64
    filters: I64
    height: I64
    width: I64
    image_step: I64
    channel_step: I64
    row_step: I64
    column_step: I64
    above: I64
    before: I64
    rows: I64
    columns: I64
    lines: I64
    results: I64
    stride_rows: I64
    dilation_rows: I64
    w_filter: I64
    w_channel: I64
    w_run: I64
    w_pixel: I64
    runs: I64
    """Parts of the window whose pixels are equally far apart: one, or its rows."""
    run: I64
    part: I64
    """Images of a tile, at most."""
    piece: I64
    """Rows of the window that are summed at a time, at most."""
    seen_rows: I64
    pitch: I64
    """Columns that the window sees."""
    offsets: Region
    """Of what each line sees first, in bytes."""
    sums: Region
    packed: Region
    seen: Region


@dataclass(frozen=True, slots=True)
class FewResultsForm:
    """A register tile, what becomes of the sums, and how the filters are stored."""

    tile: FewResultsTile
    epilogue: Epilogue
    layout: Layout


ARGUMENTS = Arguments(FewResultsArgs)


def few_results_code(form: FewResultsForm) -> KernelCode:
    """The kernel."""
    tile = form.tile
    turned = RegisterTile(tile.device, tile.vectors, tile.lines * tile.results, form.epilogue, False)
    pack, _ = pack_function(tile.device, f32, form.layout, tile.block, 4 * tile.block)
    made = assemble(
        "few_results", [_kernel(form)], [transpose_sums(turned), pack_phase(tile.device), register_tiles(tile)]
    )
    return KernelCode(made.name, made.text, made.uses, (*made.shared, pack), made.is_final)


def _kernel(form: FewResultsForm) -> Function:
    """The tiles from `begin` to before `end`."""
    tile = form.tile
    t = VectorBuilder(tile.device)
    a = ARGUMENTS.load(t, WORDS, SCRATCH)
    plane, taps = t.mul(t.mul(a.seen_rows, a.pitch), 4), t.mul(a.lines, a.results)
    down = t.mul(t.mul(a.stride_rows, a.pitch), 4)
    with t.loop(0, t.mul(a.part, a.lines)) as line:
        offset = t.add(t.mul(t.sdiv(line, a.lines), plane), t.mul(t.srem(line, a.lines), down))
        t.store_i64(offset, t.element(a.offsets, "i64", line))
    blocks = t.ceil_div(a.filters, tile.block)
    with t.loop(BEGIN, END) as number:
        first_filter, first = t.mul(t.srem(number, blocks), tile.block), t.mul(t.sdiv(number, blocks), a.part)
        own, images = t.smin(tile.block, t.sub(a.filters, first_filter)), t.smin(a.part, t.sub(a.images, first))
        with t.loop(0, t.mul(t.mul(images, taps), tile.vectors)) as one:
            t.store(ZERO, t.ptr_add(a.sums, t.mul(one, t.bytes)))
        with t.loop(0, a.channels) as channel:
            _pack(t, form, a, channel, (first, images, plane), (first_filter, own))
            with t.loop(0, a.rows, step=a.piece) as row:
                _multiply(t, tile, a, row, t.mul(images, a.lines))
        _finish(t, form, a, (first, images), (first_filter, own), taps)
    return kernel_function(t)


def _pack(
    t: VectorBuilder,
    form: FewResultsForm,
    a: FewResultsArgs,
    channel: I64,
    seen: tuple[I64, I64, I64],
    filters: tuple[I64, I64],
) -> None:
    """Transpose a block of filters, and pack what their window sees of some images."""
    (first, images, plane), (first_filter, own) = seen, filters
    block = form.tile.block
    _, transposed = pack_function(t.device, f32, form.layout, block, 4 * block)
    t.use(transposed.declaration)
    w = t.ptr_add(t.ptr_add(a.w, t.mul(first_filter, a.w_filter)), t.mul(channel, a.w_channel))
    with t.loop(0, a.runs) as run:
        source, onto = t.ptr_add(w, t.mul(run, a.w_run)), t.ptr_add(a.packed, t.mul(t.mul(run, a.run), 4 * block))
        t.call(transposed, source, a.w_pixel, a.w_filter, onto, 0, own, a.run)
    x = t.ptr_add(t.ptr_add(a.x, t.mul(first, a.image_step)), t.mul(channel, a.channel_step))
    with t.loop(0, images) as image:
        t.call(
            pack_phase_signature(t.lanes), t.ptr_add(x, t.mul(image, a.image_step)),
            t.ptr_add(a.seen, t.mul(image, plane)), a.height, a.width, a.row_step, a.column_step, a.column_step, 1, 1,
            t.sub(0, a.above), t.sub(0, a.before), a.seen_rows, a.pitch, t.mul(a.pitch, 4),
        )  # fmt: skip


def _multiply(t: VectorBuilder, tile: FewResultsTile, a: FewResultsArgs, row: I64, lines: I64) -> None:
    """Add a piece of the window to all sums, in register tiles as equal as they can be."""
    row_step = t.mul(t.mul(a.dilation_rows, a.pitch), 4)
    rows = t.smin(a.piece, t.sub(a.rows, row))
    w = t.ptr_add(a.packed, t.mul(t.mul(row, a.columns), 4 * tile.block))
    x = t.ptr_add(a.seen, t.mul(row, row_step))
    count = t.ceil_div(lines, tile.lines)
    narrow, wider = t.sdiv(lines, count), t.srem(lines, count)
    with t.loop(0, count) as number:
        own = t.add(narrow, t.zext(t.icmp("slt", number, wider)))
        line = t.add(t.mul(number, narrow), t.smin(number, wider))
        sums = t.ptr_add(a.sums, t.mul(line, 4 * tile.block * tile.results))
        offsets = t.element(a.offsets, "i64", line)
        t.call(tile_signature(tile), w, x, offsets, sums, rows, a.columns, row_step, own)


def _finish(
    t: VectorBuilder,
    form: FewResultsForm,
    a: FewResultsArgs,
    seen: tuple[I64, I64],
    filters: tuple[I64, I64],
    taps: I64,
) -> None:
    """Transpose the sums of each image, a vector of filters at a time."""
    (first, images), (first_filter, own), tile = seen, filters, form.tile
    area, line = t.mul(taps, 4), 4 * tile.block
    with t.loop(0, images) as image, t.loop(0, tile.vectors) as vector:
        done = t.mul(vector, t.lanes)
        left = t.smin(t.lanes, t.sub(own, done))
        with t.when(t.icmp("sgt", left, 0)):
            sums = t.ptr_add(a.sums, t.add(t.mul(t.mul(image, taps), line), t.mul(vector, t.bytes)))
            number = t.add(t.mul(t.add(first, image), a.filters), t.add(first_filter, done))
            y = t.ptr_add(a.y, t.mul(number, area))
            t.call(transpose_signature(form.epilogue), sums, NULL, NULL, y, area, left, taps, line)


__all__ = ["ARGUMENTS", "FewResultsForm", "few_results_code"]

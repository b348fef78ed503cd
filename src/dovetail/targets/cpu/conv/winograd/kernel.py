"""Convolution by Winograd's scheme, with filters in the lanes of vectors.

Patches of pixels are transformed to as many elements each; for each of these spots there is one matrix product, patches
by channels by filters; its sums are transformed back and transposed. A tile is one block of filters for some patches of
one image, in successive rows of a block of patches. Register tiles and transposes are those of `filters_in_lanes`; the
nest is another one, because each spot has weights and sums of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, NULL, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, WORDS, Arguments, KernelCode, assemble, kernel_function
from dovetail.codegen.llvm.once import once_for
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.epilogue import RowTarget, arguments_of, writer_of
from dovetail.targets.cpu.conv.filters_in_lanes import (
    PixelTiles,
    RegisterTile,
    broadcast_tiles,
    transpose_sums,
    write_broadcast_tile,
    write_finished,
)
from dovetail.targets.cpu.conv.patches import PatchLayout, WindowArgs, pack_phase, patch_layout, write_tap_offsets
from dovetail.targets.cpu.conv.winograd.patches import (
    deinterleave,
    dilated_layout,
    pack_runs,
    write_deinterleaved,
    write_dilated,
    write_dilated_offsets,
)
from dovetail.targets.cpu.conv.winograd.scheme import FOUR, Scheme


@dataclass(frozen=True, slots=True)
class WinogradArgs(WindowArgs):
    """The window is a patch, and output pixels are patches. `parts` tiles of `part` patches share a block, which begins
    `height_of_block` rows after the one before; `block_rows` are those of one part. A piece is some channels."""

    x: Ptr
    w: Ptr
    b: Ptr
    r: Ptr
    y: Ptr
    channels: I64
    filters: I64
    image_step: I64
    channel_step: I64
    result_height: I64
    result_width: I64
    height_of_block: I64
    parts: I64
    part: I64
    piece: I64
    r_image: I64
    taps: Region
    """Offsets of the pixels of a patch."""
    patches: Region
    """Transformed patches of all channels."""
    sums: Region
    results: Region
    rows: Region
    seen: Region
    """What is seen of one channel."""


def arguments(epilogue: Epilogue) -> Arguments[WinogradArgs]:
    return arguments_of(WinogradArgs, epilogue, "r_image")


def winograd_code(scheme: Scheme, tile: RegisterTile, dilated: bool = False) -> KernelCode:
    """The kernel; the pixels of `tile` are patches."""
    own = [_transform_input(scheme, tile), _transform_output(scheme, tile, dilated), _kernel(scheme, tile, dilated)]
    device = tile.device
    packing = (
        [pack_runs(device)]
        if dilated
        else [pack_phase(device), deinterleave(device, scheme.down.out, scheme.across.out)]
    )
    shared = [transpose_sums(tile), *packing, broadcast_tiles(tile)]
    return assemble(kernel_name(scheme, dilated), own, shared)


def kernel_name(scheme: Scheme, dilated: bool) -> str:
    """What the kernel is called."""
    window = "" if scheme.taps == FOUR.taps else f"_{scheme.taps}x{scheme.taps}"
    rows, columns = scheme.down.out, scheme.across.out
    out = f"_{rows}x{columns}" if rows != columns else "" if rows == FOUR.down.out else f"_{rows}"
    return f"winograd{window}{out}{'_dilated' if dilated else ''}"


_TRANSFORM_INPUT = Signature(
    "kernel.enter",
    (
        Parameter("ptr", "seen", "noalias readonly"), Parameter("ptr", "offsets", "noalias readonly"),
        Parameter("ptr", "onto", "noalias"), Parameter("i64", "spot_step"), Parameter("i64", "rows"),
        Parameter("i64", "columns"), Parameter("i64", "pitch"),
    ),
)  # fmt: skip
_TRANSFORM_OUTPUT = Signature(
    "kernel.leave",
    (
        Parameter("ptr", "sums", "noalias readonly"), Parameter("i64", "spot_step"),
        Parameter("ptr", "onto", "noalias"), Parameter("i64", "line_step"), Parameter("i64", "count"),
    ),
)  # fmt: skip
_TRANSFORM_DILATED = replace(
    _TRANSFORM_OUTPUT, parameters=(*_TRANSFORM_OUTPUT.parameters, Parameter("i64", "dilation"))
)


def _transform_input(scheme: Scheme, tile: RegisterTile) -> Function:
    """Transform the patches of one channel, row by row; each stores a full vector, and the next overwrites its end."""
    t = VectorBuilder(tile.device)
    columns = I64("%columns")
    with t.loop(0, I64("%rows")) as row, t.steps(0, columns, t.lanes) as column:
        here = t.ptr_add(Ptr("%seen"), t.mul(t.add(t.mul(row, I64("%pitch")), column), 4))
        there = t.ptr_add(Ptr("%onto"), t.mul(t.add(t.mul(row, columns), column), 4))
        offsets = [t.load_i64(t.ptr_add(Ptr("%offsets"), 8 * spot)) for spot in range(scheme.spots)]
        pixels = [t.load(t.ptr_add(here, offset)) for offset in offsets]
        for spot, x in enumerate(scheme.into(t, pixels)):
            t.store(x, t.ptr_add(there, t.mul(I64("%spot_step"), spot)))
    return t.function(_TRANSFORM_INPUT, linkage="internal")


def _transform_output(scheme: Scheme, tile: RegisterTile, dilated: bool) -> Function:
    """Transform sums [spot][patch][filter] back to results [line][pixel][filter]."""
    t = VectorBuilder(tile.device)
    wide, count = 4 * tile.block, I64("%count")
    if not dilated:
        with t.loop(0, count) as patch:
            pixels = [wide * i for i in range(scheme.across.out)]
            _transform_back(t, scheme, tile, patch, t.mul(patch, scheme.across.out * wide), pixels)
        return t.function(_TRANSFORM_OUTPUT, linkage="internal")
    dilation = I64("%dilation")
    with t.loop(0, count, step=dilation) as first, t.loop(0, t.smin(dilation, t.sub(count, first))) as phase:
        pixels = [t.mul(dilation, wide * i) for i in range(scheme.across.out)]
        onto = t.mul(t.add(t.mul(first, scheme.across.out), phase), wide)
        _transform_back(t, scheme, tile, t.add(first, phase), onto, pixels)
    return t.function(_TRANSFORM_DILATED, linkage="internal")


def _transform_back(
    t: VectorBuilder, scheme: Scheme, tile: RegisterTile, patch: I64, onto: I64, pixels: Sequence[Int]
) -> None:
    """Transform the sums of one patch; `pixels` are the offsets of a line's results."""
    with t.loop(0, tile.filters) as vector:
        by = t.mul(vector, t.bytes)
        source = t.ptr_add(Ptr("%sums"), t.add(t.mul(patch, 4 * tile.block), by))
        sums = [t.load(t.ptr_add(source, t.mul(I64("%spot_step"), spot))) for spot in range(scheme.spots)]
        target = t.ptr_add(Ptr("%onto"), t.add(onto, by))
        for i, x in enumerate(scheme.back(t, sums)):
            line = t.ptr_add(target, t.mul(I64("%line_step"), i // scheme.across.out))
            t.store(x, t.ptr_add(line, pixels[i % scheme.across.out]))


@dataclass(frozen=True, slots=True)
class _Strides:
    """Bytes between channels and between spots of patches, between spots of sums, lines of results, and channels of the
    result; pixels between lines of a patch in the result."""

    channel: I64
    spot: I64
    sums: I64
    line: I64
    area: I64
    pitch: I64


@dataclass(frozen=True, slots=True)
class _Part:
    """Some patches of a block: its image, first row and column and columns; patches from `start` to before `stop`, in
    rows from `upper` to before `lower`."""

    image: I64
    top: I64
    first_column: I64
    columns: I64
    start: I64
    stop: I64
    upper: I64
    lower: I64


def _kernel(scheme: Scheme, tile: RegisterTile, dilated: bool) -> Function:
    """The tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    declared = arguments(tile.epilogue)
    a = declared.load(t, WORDS, SCRATCH)
    rows = RowTarget.of(writer_of(t, declared, tile.epilogue, a.y), a.rows)
    of = dilated_layout(t, a) if dilated else patch_layout(t, a)
    channel_step = t.mul(t.mul(a.block_rows, a.block_columns), 4)
    # One vector more, which the last channel may overwrite, and so that spots fall on several sets of the cache.
    spot_step = t.add(t.mul(t.ceil_div(t.mul(channel_step, a.channels), 64), 64), t.bytes)
    sums_step = t.add(t.mul(a.part, 4 * tile.block), t.bytes)
    line_step = t.mul(a.block_columns, scheme.across.out * 4 * tile.block)
    (write_dilated_offsets if dilated else write_tap_offsets)(t, a, of, a.taps)
    blocks, area = t.ceil_div(a.filters, tile.block), t.mul(t.mul(a.result_height, a.result_width), 4)
    pitch = t.mul(a.result_width, a.dilation_rows) if dilated else a.result_width
    strides = _Strides(channel_step, spot_step, sums_step, line_step, area, pitch)
    with t.loop(BEGIN, END) as number:
        filter_block, left = t.srem(number, blocks), t.sdiv(number, blocks)
        part = _part(t, a, left)
        with t.when(once_for(t, SCRATCH, 0, left)), t.loop(0, a.channels) as channel:
            _enter(t, scheme, a, of, strides, part, channel, dilated)
        _multiply(t, scheme, tile, a, strides, part, filter_block)
        with t.loop(part.upper, part.lower) as row:
            _leave(t, scheme, tile, a, strides, part, filter_block, row, rows, dilated)
    return kernel_function(t)


def _part(t: VectorBuilder, a: WinogradArgs, number: I64) -> _Part:
    """A part by its number."""
    part, patch_block = t.srem(number, a.parts), t.sdiv(number, a.parts)
    column_block, left = t.srem(patch_block, a.column_blocks), t.sdiv(patch_block, a.column_blocks)
    row_block, image = t.srem(left, a.row_blocks), t.sdiv(left, a.row_blocks)
    top, first_column = t.mul(row_block, a.height_of_block), t.mul(column_block, a.block_columns)
    columns = t.smin(a.block_columns, t.sub(a.out_width, first_column))
    held = t.mul(t.smin(a.height_of_block, t.sub(a.out_height, top)), columns)
    start = t.mul(part, a.part)
    stop = t.smin(held, t.add(start, a.part))
    upper, lower = t.sdiv(start, columns), t.ceil_div(stop, columns)
    return _Part(image, top, first_column, columns, start, stop, upper, lower)


def _enter(
    t: VectorBuilder,
    scheme: Scheme,
    a: WinogradArgs,
    of: PatchLayout,
    strides: _Strides,
    part: _Part,
    channel: I64,
    dilated: bool,
) -> None:
    """Transform the patches of one channel."""
    source = t.ptr_add(t.ptr_add(a.x, t.mul(part.image, a.image_step)), t.mul(channel, a.channel_step))
    first_row = t.add(part.top, part.upper)
    if dilated:
        write_dilated(t, a, of, source, a.seen, first_row, part.first_column)
    else:
        write_deinterleaved(t, a, of, scheme, source, a.seen, first_row, part.first_column)
    onto = t.ptr_add(a.patches, t.mul(channel, strides.channel))
    rows = t.sub(part.lower, part.upper)
    t.call(_TRANSFORM_INPUT, a.seen, a.taps, onto, strides.spot, rows, part.columns, of.pitch)


def _multiply(
    t: VectorBuilder,
    scheme: Scheme,
    tile: RegisterTile,
    a: WinogradArgs,
    strides: _Strides,
    part: _Part,
    filter_block: I64,
) -> None:
    """The matrix products of all spots, piece by piece of the channels."""
    tiles = PixelTiles.of(t, tile, t.sub(part.stop, part.start))
    before = t.sub(part.start, t.mul(part.upper, part.columns))
    with t.loop(0, scheme.spots) as spot, t.loop(0, t.ceil_div(a.channels, a.piece)) as piece:
        first = t.mul(piece, a.piece)
        some = t.smin(a.piece, t.sub(a.channels, first))
        packed = t.add(t.mul(filter_block, scheme.spots), spot)
        w = t.ptr_add(a.w, t.mul(t.add(t.mul(packed, a.channels), first), 4 * tile.block))
        offset = t.add(t.mul(spot, strides.spot), t.mul(first, strides.channel))
        x = t.ptr_add(a.patches, t.add(offset, t.mul(before, 4)))
        size = t.mul(some, 4 * tile.block)
        is_first = t.icmp("eq", piece, 0)
        onto = t.ptr_add(a.sums, t.mul(spot, strides.sums))
        with t.loop(0, tiles.count) as number:
            write_broadcast_tile(t, tile, tiles, number, w, x, onto, strides.channel, some, is_first, size)


def _leave(
    t: VectorBuilder,
    scheme: Scheme,
    tile: RegisterTile,
    a: WinogradArgs,
    strides: _Strides,
    part: _Part,
    filter_block: I64,
    row: I64,
    rows: RowTarget | None,
    dilated: bool,
) -> None:
    """Transform the sums of one row of patches back, and transpose them."""
    rows_out, columns_out, block = scheme.down.out, scheme.across.out, tile.block
    begin = t.smax(part.start, t.mul(row, part.columns))
    length = t.sub(t.smin(part.stop, t.mul(t.add(row, 1), part.columns)), begin)
    column = t.sub(begin, t.mul(row, part.columns))
    here = t.ptr_add(a.sums, t.mul(t.sub(begin, part.start), 4 * block))
    line = t.mul(t.mul(t.sub(row, part.upper), rows_out), strides.line)
    onto = t.ptr_add(a.results, t.add(line, t.mul(column, columns_out * 4 * block)))
    if dilated:
        t.call(_TRANSFORM_DILATED, here, strides.sums, onto, strides.line, length, a.dilation_columns)
        patch, apart = t.add(part.top, row), a.dilation_rows
        first_line = t.add(t.mul(t.mul(t.sdiv(patch, apart), apart), rows_out), t.srem(patch, apart))
        first_pixel = t.mul(t.add(part.first_column, column), columns_out)
        lines = t.smin(rows_out, t.ceil_div(t.sub(a.result_height, first_line), apart))
    else:
        t.call(_TRANSFORM_OUTPUT, here, strides.sums, onto, strides.line, length)
        first_line = t.mul(t.add(part.top, row), rows_out)
        first_pixel = t.mul(t.add(part.first_column, column), columns_out)
        lines = t.smin(rows_out, t.sub(a.result_height, first_line))
    pixels = t.smin(t.mul(length, columns_out), t.sub(a.result_width, first_pixel))
    corner = t.add(t.mul(first_line, a.result_width), first_pixel)
    with t.loop(0, lines) as line:
        _write_line(t, tile, a, strides, part, filter_block, line, corner, pixels, onto, rows)


def _write_line(
    t: VectorBuilder,
    tile: RegisterTile,
    a: WinogradArgs,
    strides: _Strides,
    part: _Part,
    filter_block: I64,
    line: I64,
    corner: I64,
    pixels: I64,
    onto: Ptr,
    rows: RowTarget | None,
) -> None:
    """Transpose one line of results, a vector of filters at a time."""
    block = tile.block
    with t.loop(0, tile.filters) as vector:
        first = t.add(t.mul(filter_block, block), t.mul(vector, t.lanes))
        own = t.smin(t.lanes, t.sub(a.filters, first))
        with t.when(t.icmp("sgt", own, 0)):
            bias = t.ptr_add(a.b, t.mul(first, 4)) if tile.epilogue.bias else NULL
            channel = t.mul(first, strides.area)
            pixel = t.add(corner, t.mul(line, strides.pitch))
            at = t.add(channel, t.mul(pixel, 4))
            target = t.ptr_add(a.y, t.add(t.mul(t.mul(part.image, a.filters), strides.area), at))
            residual = t.ptr_add(t.ptr_add(a.r, t.mul(part.image, a.r_image)), at) if tile.epilogue.residual else NULL
            source = t.ptr_add(onto, t.add(t.mul(line, strides.line), t.mul(vector, t.bytes)))
            write_finished(
                t, tile.epilogue, rows, source, bias, residual, target, strides.area, own, pixels, 4 * block, vector
            )
    if rows is not None:
        first = t.mul(filter_block, block)
        pixel = t.add(corner, t.mul(line, strides.pitch))
        held = t.smin(block, t.sub(a.filters, first))
        rows.write(t, t.mul(pixels, 4), held, pixels, (part.image, first, pixel))

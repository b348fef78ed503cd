"""1×1 convolution as a matrix product with filters in the lanes of vectors.

A tile is some panels of filters at some pixels of one image. What the pixels see is packed once, as register tiles read
it: a few pixels side by side, channel by channel. While a panel's weights are multiplied, the next lines are
prefetched, one at a time; sums are transposed when a panel is done.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, NULL, Ptr
from dovetail.codegen.llvm.kernel import (
    BEGIN,
    END,
    SCRATCH,
    WORDS,
    Arguments,
    KernelCode,
    assemble,
    kernel_function,
)
from dovetail.codegen.llvm.once import once_for
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.epilogue import RowTarget, activate, arguments_of, writer_of
from dovetail.targets.cpu.conv.pointwise_packed.micro_kernel import (
    micro_kernel,
    micro_kernel_signature,
    prefetched_rows,
)
from dovetail.targets.cpu.conv.pointwise_packed.pack import (
    CONTIGUOUS,
    SECOND,
    STRIDED,
    pack_pixels,
    pack_signature,
    tile_step,
)
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.register_tile import RegisterTile, transpose_sums, write_finished


@dataclass(frozen=True, slots=True)
class PointwisePackedArgs:
    """A part of pixels is some register tiles, one of filters some panels; a row has `width` pixels."""

    x: Ptr
    w: Ptr
    b: Ptr
    r: Ptr
    y: Ptr
    pixels: I64
    groups: I64
    channels: I64
    filters: I64
    image_step: I64
    group_step: I64
    channel_step: I64
    pixel_parts: I64
    pixel_part: I64
    filter_parts: I64
    filter_part: I64
    width: I64
    row_step: I64
    column_step: I64
    r_image: I64
    sums: Region
    rows: Region
    seen: Region
    """What the pixels see."""
    where: Region
    """Offsets of pixels."""


def arguments(epilogue: Epilogue) -> Arguments[PointwisePackedArgs]:
    return arguments_of(PointwisePackedArgs, epilogue, "r_image")


def pointwise_packed_code(tile: RegisterTile, lines: int) -> KernelCode:
    """The kernel; it prefetches `lines` lines of what is next in each iteration."""
    # Sums begin with the bias.
    unbiased = replace(tile, epilogue=replace(tile.epilogue, bias=False))
    shared = [transpose_sums(unbiased), _transpose_full(tile), pack_pixels(tile), micro_kernel(tile, lines)]
    return assemble("panel_conv", [_kernel(tile, lines)], shared)


_TRANSPOSE_FULL = Signature(
    "kernel.turn_whole",
    (
        Parameter("ptr", "sums", "noalias readonly"),
        Parameter("ptr", "r"),
        Parameter("ptr", "y"),
        Parameter("i64", "step"),
        Parameter("i64", "vectors"),
    ),
)


def _transpose_full(tile: RegisterTile) -> Function:
    """Sums [pixel][filter] of one vector of filters as results, where pixels and filters fill whole vectors."""
    t = VectorBuilder(tile.device)
    epilogue, step = tile.epilogue, I64("%step")
    with t.loop(0, I64("%vectors")) as number:
        sums = t.ptr_add(Ptr("%sums"), t.mul(number, t.bytes * tile.block))
        rows = [t.load(t.ptr_add(sums, 4 * tile.block * i)) for i in range(t.lanes)]
        if not epilogue.residual:
            rows = [activate(t, epilogue.act, x) for x in rows]
        pixel = t.mul(number, t.bytes)
        for i, x in enumerate(t.transpose(rows)):
            by = t.add(t.mul(step, i), pixel)
            if epilogue.residual:
                x = activate(t, epilogue.act, t.fadd(x, t.load(t.ptr_add(Ptr("%r"), by))))
            t.store(x, t.ptr_add(Ptr("%y"), by))
    return t.function(_TRANSPOSE_FULL)


@dataclass(frozen=True, slots=True)
class _Part:
    """The pixels of a tile: image and group, first pixel, how many, and register tiles."""

    image: I64
    group: I64
    start: I64
    count: I64
    tiles: I64


def _kernel(tile: RegisterTile, lines: int) -> Function:
    """The tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    declared = arguments(tile.epilogue)
    a = declared.load(t, WORDS, SCRATCH)
    rows = RowTarget.of(writer_of(t, declared, tile.epilogue, a.y), a.rows)
    panels = t.ceil_div(a.filters, tile.block)
    size = t.mul(a.channels, 4 * tile.block)
    with t.loop(BEGIN, END) as number:
        filter_part, block_number = t.srem(number, a.filter_parts), t.sdiv(number, a.filter_parts)
        pixel_part, image_group = t.srem(block_number, a.pixel_parts), t.sdiv(block_number, a.pixel_parts)
        group, image = t.srem(image_group, a.groups), t.sdiv(image_group, a.groups)
        start = t.mul(pixel_part, a.pixel_part)
        count = t.smin(a.pixel_part, t.sub(a.pixels, start))
        part = _Part(image, group, start, count, t.ceil_div(count, tile.pixels))
        first_panel = t.mul(filter_part, a.filter_part)
        with t.when(once_for(t, SCRATCH, 0, block_number)):
            following = t.ptr_add(a.w, t.mul(t.add(t.mul(group, panels), first_panel), size))
            _pack(t, tile, a, part, following)
        with t.loop(first_panel, t.smin(panels, t.add(first_panel, a.filter_part))) as panel:
            _panel(t, tile, lines, a, part, panel, t.add(t.mul(group, panels), panel), size, rows)
    return kernel_function(t)


def _pack(t: VectorBuilder, tile: RegisterTile, a: PointwisePackedArgs, part: _Part, following: Ptr) -> None:
    """Pack what the pixels of a tile see, prefetching the first weights meanwhile."""
    source = t.ptr_add(t.ptr_add(a.x, t.mul(part.image, a.image_step)), t.mul(part.group, a.group_step))
    with t.loop(0, part.count) as number:
        pixel = t.add(part.start, number)
        down = t.mul(t.sdiv(pixel, a.width), a.row_step)
        offset = t.add(down, t.mul(t.srem(pixel, a.width), a.column_step))
        t.store_i64(offset, t.element(a.where, "i64", number))
    rows_follow = t.icmp("eq", a.row_step, t.mul(a.width, a.column_step))
    contiguous = t.and_(rows_follow, t.icmp("eq", a.column_step, 4))
    full_rows = t.icmp("eq", t.srem(a.width, tile.pixels), 0)
    full = t.and_(full_rows, t.icmp("eq", t.srem(part.count, tile.pixels), 0))
    second = t.and_(t.icmp("eq", a.column_step, 8), full)
    form = t.select_int(contiguous, CONTIGUOUS, t.select_int(second, SECOND, STRIDED))
    t.call(pack_signature(tile), source, a.seen, a.channel_step, a.channels, part.count, a.where, following, form)


def _panel(
    t: VectorBuilder,
    tile: RegisterTile,
    lines: int,
    a: PointwisePackedArgs,
    part: _Part,
    panel: I64,
    packed: I64,
    size: I64,
    rows: RowTarget | None,
) -> None:
    """Multiply the pixels of a tile with one panel of filters, and finish the sums."""
    block, area = tile.block, t.mul(a.pixels, 4)
    weights = t.ptr_add(a.w, t.mul(packed, size))
    first_filter = t.mul(panel, block)
    channel = t.add(t.mul(part.group, a.filters), first_filter)
    own_row = t.add(t.mul(channel, area), t.mul(part.start, 4))
    image = t.mul(t.mul(part.image, t.mul(a.groups, a.filters)), area)
    results = t.ptr_add(a.y, t.add(image, own_row))
    residual = NULL
    if tile.epilogue.residual:
        residual = t.ptr_add(t.ptr_add(a.r, t.mul(part.image, a.r_image)), own_row)
    _multiply(t, tile, lines, a, part, packed, weights, size, results, residual)
    _finish(t, tile, a, part, first_filter, area, results, residual, rows)


def _multiply(
    t: VectorBuilder,
    tile: RegisterTile,
    lines: int,
    a: PointwisePackedArgs,
    part: _Part,
    packed: I64,
    weights: Ptr,
    size: I64,
    results: Ptr,
    residual: Ptr,
) -> None:
    """Go through register tiles, and through the channels piece by piece."""
    block, area = tile.block, t.mul(a.pixels, 4)
    bias = t.ptr_add(a.b, t.mul(packed, 4 * block)) if tile.epilogue.bias else NULL
    iterations = t.mul(t.sdiv(a.channels, BLOCKS.packed.unroll), lines)
    pieces = t.ceil_div(a.channels, BLOCKS.packed.piece)
    deep = t.round_up(t.ceil_div(a.channels, pieces), BLOCKS.packed.unroll)
    step, rows = tile_step(t, tile, a.channels), prefetched_rows(tile)
    with t.loop(0, part.tiles) as number:
        begin = t.mul(number, tile.pixels)
        line = t.add(t.mul(t.mul(t.srem(number, block // rows), rows), area), t.mul(begin, 4))
        following = t.ptr_add(t.ptr_add(weights, size), t.mul(t.mul(number, iterations), t.device.caches.line))
        seen, onto = t.ptr_add(a.seen, t.mul(number, step)), t.ptr_add(a.sums, t.mul(begin, 4 * block))
        with t.loop(0, pieces) as piece:
            before = t.mul(piece, deep)
            some = t.smin(deep, t.sub(a.channels, before))
            prefetched = t.mul(t.sdiv(before, BLOCKS.packed.unroll), lines * t.device.caches.line)
            t.call(
                micro_kernel_signature(tile, lines),
                t.ptr_add(weights, t.mul(before, 4 * block)),
                t.ptr_add(seen, t.mul(before, 4 * tile.pixels)),
                some,
                bias,
                onto,
                t.icmp("eq", piece, 0),
                t.ptr_add(following, prefetched),
                t.ptr_add(results, line),
                t.ptr_add(residual, line) if tile.epilogue.residual else NULL,
                area,
            )


def _finish(
    t: VectorBuilder,
    tile: RegisterTile,
    a: PointwisePackedArgs,
    part: _Part,
    first_filter: I64,
    area: I64,
    results: Ptr,
    residual: Ptr,
    rows: RowTarget | None,
) -> None:
    """Transpose the sums of a panel, a vector of filters at a time."""
    lanes, block, unbiased = t.lanes, tile.block, replace(tile.epilogue, bias=False)
    if rows is not None:
        _finish_rows(t, tile, a, part, first_filter, area, residual, rows)
        return
    with t.loop(0, tile.filters) as vector:
        own = t.smin(lanes, t.sub(a.filters, t.add(first_filter, t.mul(vector, lanes))))
        by = t.mul(t.mul(vector, lanes), area)
        target, here = t.ptr_add(results, by), t.ptr_add(a.sums, t.mul(vector, t.bytes))
        other = t.ptr_add(residual, by) if tile.epilogue.residual else NULL
        full = t.icmp("eq", own, lanes)
        whole = t.select_int(full, t.sdiv(part.count, lanes), 0)
        with t.when(full):
            t.call(_TRANSPOSE_FULL, here, other, target, area, whole)
        done = t.mul(whole, lanes)
        left = t.sub(part.count, done)
        with t.when(t.and_(t.icmp("sgt", own, 0), t.icmp("sgt", left, 0))):
            on = t.mul(done, 4)
            rest = t.ptr_add(here, t.mul(done, 4 * block))
            added = t.ptr_add(other, on) if tile.epilogue.residual else NULL
            y = t.ptr_add(target, on)
            write_finished(t, unbiased, None, rest, NULL, added, y, area, own, left, 4 * block, vector)


def _finish_rows(
    t: VectorBuilder,
    tile: RegisterTile,
    a: PointwisePackedArgs,
    part: _Part,
    first_filter: I64,
    area: I64,
    residual: Ptr,
    rows: RowTarget,
) -> None:
    """Transpose the sums of a panel to rows of the workspace, and apply the steps to these."""
    lanes, unbiased = t.lanes, replace(tile.epilogue, bias=False)
    with t.loop(0, tile.filters) as vector:
        own = t.smin(lanes, t.sub(a.filters, t.add(first_filter, t.mul(vector, lanes))))
        with t.when(t.icmp("sgt", own, 0)):
            here, apart = t.ptr_add(a.sums, t.mul(vector, t.bytes)), 4 * tile.block
            other = t.ptr_add(residual, t.mul(t.mul(vector, lanes), area)) if tile.epilogue.residual else NULL
            write_finished(t, unbiased, rows, here, NULL, other, NULL, area, own, part.count, apart, vector)
    held, channel = t.smin(tile.block, t.sub(a.filters, first_filter)), t.mul(part.group, a.filters)
    corner = (part.image, t.add(channel, first_filter), part.start)
    rows.write(t, t.mul(part.count, 4), held, part.count, corner)

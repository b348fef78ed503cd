"""Convolution of few channels by a large window: filters in the lanes of vectors, rows of pixels.

A tile is one block of filters at some rows of one image. What these rows see is packed by phases of the strides, so
that the pixels of a row see contiguous elements; a register tile is a few pixels of one row. All weights of a block of
filters stay in L1. The sums of a row are transposed when it is done.
"""

from __future__ import annotations

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function
from dovetail.codegen.llvm.handles import I64, NULL, TRUE, Ptr
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
from dovetail.targets.cpu.conv.broadcast_tile import Tiles, broadcast_tiles, write_broadcast_tile
from dovetail.targets.cpu.conv.epilogue import RowTarget, arguments_of, writer_of
from dovetail.targets.cpu.conv.patches import (
    PatchLayout,
    WindowArgs,
    pack_phase,
    patch_layout,
    write_patch,
    write_tap_offsets,
)
from dovetail.targets.cpu.conv.register_tile import (
    RegisterTile,
    transpose_sums,
    write_finished,
    write_prefetched_rows,
)


@dataclass(frozen=True, slots=True)
class FewChannelsArgs(WindowArgs):
    """A block has all columns."""

    x: Ptr
    w: Ptr
    b: Ptr
    r: Ptr
    y: Ptr
    channels: I64
    filters: I64
    image_step: I64
    channel_step: I64
    r_image: I64
    taps: Region
    """Offsets of taps."""
    moves: Region
    """From one step to the next, in bytes."""
    sums: Region
    rows: Region
    seen: Region


def arguments(epilogue: Epilogue) -> Arguments[FewChannelsArgs]:
    return arguments_of(FewChannelsArgs, epilogue, "r_image")


def few_channels_code(tile: RegisterTile) -> KernelCode:
    """The kernel."""
    shared = [transpose_sums(tile), pack_phase(tile.device), broadcast_tiles(tile)]
    return assemble("row_conv", [_kernel(tile)], shared)


def _kernel(tile: RegisterTile) -> Function:
    """The tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    block = tile.block
    declared = arguments(tile.epilogue)
    a = declared.load(t, WORDS, SCRATCH)
    rows = RowTarget.of(writer_of(t, declared, tile.epilogue, a.y), a.rows)
    of = patch_layout(t, a)
    steps = t.mul(a.channels, of.taps)
    write_tap_offsets(t, a, of, a.taps)
    with t.loop(0, steps) as number:
        now, then = (_offset(t, a, of, t.add(number, i)) for i in range(2))
        t.store_i64(t.sub(then, now), t.element(a.moves, "i64", number))
    blocks, tiles = t.ceil_div(a.filters, block), Tiles.of(t, tile, a.out_width)
    area, row_size = t.mul(t.mul(a.out_height, a.out_width), 4), t.mul(a.out_width, 4)
    with t.loop(BEGIN, END) as number:
        filter_block, left = t.srem(number, blocks), t.sdiv(number, blocks)
        row_block, image = t.srem(left, a.row_blocks), t.sdiv(left, a.row_blocks)
        first_row = t.mul(row_block, a.block_rows)
        with t.when(once_for(t, SCRATCH, 0, left)), t.loop(0, a.channels) as channel:
            source = t.ptr_add(t.ptr_add(a.x, t.mul(image, a.image_step)), t.mul(channel, a.channel_step))
            onto = t.ptr_add(a.seen, t.mul(channel, of.channel))
            write_patch(t, a, of, source, onto, first_row, I64("0"))
        weights = t.ptr_add(a.w, t.mul(t.mul(filter_block, steps), 4 * block))
        first_filter = t.mul(filter_block, block)
        own_filters = t.smin(block, t.sub(a.filters, first_filter))
        with t.loop(first_row, t.smin(a.out_height, t.add(first_row, a.block_rows))) as row:
            x = t.ptr_add(a.seen, t.mul(t.mul(t.sub(row, first_row), of.pitch), 4))
            channel = t.add(t.mul(image, a.filters), first_filter)
            results = t.ptr_add(a.y, t.add(t.mul(channel, area), t.mul(row, row_size)))
            with t.loop(0, tiles.count) as one:
                if rows is None:
                    write_prefetched_rows(t, results, own_filters, area, t.mul(t.mul(one, tiles.narrow), 4))
                write_broadcast_tile(t, tile, tiles, one, weights, x, a.sums, a.moves, steps, TRUE, 0)
            _finish_row(t, tile, a, rows, image, filter_block, row, area, row_size)
    return kernel_function(t)


def _finish_row(
    t: VectorBuilder,
    tile: RegisterTile,
    a: FewChannelsArgs,
    rows: RowTarget | None,
    image: I64,
    filter_block: I64,
    row: I64,
    area: I64,
    size: I64,
) -> None:
    """Transpose the sums of a row, a vector of filters at a time."""
    lanes, epilogue = t.lanes, tile.epilogue
    with t.loop(0, tile.filters) as vector:
        first = t.add(t.mul(filter_block, tile.block), t.mul(vector, lanes))
        own = t.smin(lanes, t.sub(a.filters, first))
        with t.when(t.icmp("sgt", own, 0)):
            bias = t.ptr_add(a.b, t.mul(first, 4)) if epilogue.bias else NULL
            at = t.add(t.mul(first, area), t.mul(row, size))
            target = t.ptr_add(a.y, t.add(t.mul(t.mul(image, a.filters), area), at))
            residual = t.ptr_add(t.ptr_add(a.r, t.mul(image, a.r_image)), at) if epilogue.residual else NULL
            sums = t.ptr_add(a.sums, t.mul(vector, t.bytes))
            write_finished(
                t, epilogue, rows, sums, bias, residual, target, area, own, a.out_width, 4 * tile.block, vector
            )
    if rows is not None:
        first = t.mul(filter_block, tile.block)
        held = t.smin(tile.block, t.sub(a.filters, first))
        rows.write(t, size, held, a.out_width, (image, first, t.mul(row, a.out_width)))


def _offset(t: VectorBuilder, a: FewChannelsArgs, of: PatchLayout, number: I64) -> I64:
    """Bytes from a pixel's own position to what a tap of a channel reads; after the last channel it is not read."""
    listed = t.load_i64(t.element(a.taps, "i64", t.srem(number, of.taps)))
    return t.add(t.mul(t.sdiv(number, of.taps), of.channel), listed)

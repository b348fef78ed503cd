"""Convolution by a k×k window with few output pixels: filters in the lanes of vectors, so that no lane is empty.

A tile is one block of filters at some pixels of one image. What these see is packed as register tiles read it: tap by
tap of every channel, a few pixels side by side. Sums are transposed at the end.
"""

from __future__ import annotations

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
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
from dovetail.targets.cpu.conv.patches import Columns, FewPixelsWindow, pack_columns, prefetch_share
from dovetail.targets.cpu.conv.register_tile import (
    Corner,
    RegisterTile,
    Results,
    transpose_sums,
    write_prefetched_rows,
    write_transposed,
)


@dataclass(frozen=True, slots=True)
class FewPixelsKxkArgs(FewPixelsWindow):
    """`parts` tiles of `part` pixels each share an image, in `block_rows` rows; a piece is some steps; what a register
    tile sees is `tile_step` bytes from that of the one before."""

    tile_step: I64
    r_image: I64
    taps: Region
    """Offsets of taps."""
    sums: Region
    rows: Region
    packed: Region
    """What register tiles see."""
    seen: Region
    """What is seen of one channel."""


def arguments(epilogue: Epilogue) -> Arguments[FewPixelsKxkArgs]:
    return arguments_of(FewPixelsKxkArgs, epilogue, "r_image")


def few_pixels_kxk_code(tile: RegisterTile) -> KernelCode:
    """The kernel."""
    shared = [transpose_sums(tile), pack_columns(tile.device), broadcast_tiles(tile)]
    return assemble("window_conv", [_pack_taps(tile), _kernel(tile)], shared)


_PACK = Signature(
    "kernel.lay",
    (
        Parameter("ptr", "seen", "noalias readonly"), Parameter("ptr", "offsets", "noalias readonly"),
        Parameter("i64", "taps"), Parameter("ptr", "onto", "noalias"), Parameter("i64", "tile_step"),
        Parameter("i64", "tiles"), Parameter("i64", "narrow"), Parameter("i64", "wider"),
    ),
)  # fmt: skip


def _pack_taps(tile: RegisterTile) -> Function:
    """Pack what the register tiles see of one channel; each vector is overwritten by what follows it."""
    t = VectorBuilder(tile.device)
    vectors = -(-tile.pixels // t.lanes)
    with t.loop(0, I64("%tiles")) as number:
        begin = t.add(t.mul(number, I64("%narrow")), t.smin(number, I64("%wider")))
        source = t.ptr_add(Ptr("%seen"), t.mul(begin, 4))
        target = t.ptr_add(Ptr("%onto"), t.mul(number, I64("%tile_step")))
        with t.loop(0, I64("%taps")) as tap:
            offset = t.load_i64(t.element(Ptr("%offsets"), "i64", tap))
            here, there = t.ptr_add(source, offset), t.ptr_add(target, t.mul(tap, 4 * tile.pixels))
            for i in range(vectors):
                t.store(t.load(t.ptr_add(here, t.bytes * i)), t.ptr_add(there, t.bytes * i))
    return t.function(_PACK, linkage="internal")


def _kernel(tile: RegisterTile) -> Function:
    """The tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    declared = arguments(tile.epilogue)
    a = declared.load(t, WORDS, SCRATCH)
    target = RowTarget.of(writer_of(t, declared, tile.epilogue, a.y), a.rows)
    of = Columns.of(t, a)
    taps = t.mul(a.window_rows, a.window_columns)
    with t.loop(0, taps) as tap:
        t.store_i64(of.offset(t, a, tap), t.element(a.taps, "i64", tap))
    blocks = t.ceil_div(a.filters, tile.block)
    with t.loop(BEGIN, END) as number:
        # Keep the pixel-to-thread mapping fixed across layers: inputs are in that core's cache.
        filter_block, left = t.srem(number, blocks), t.sdiv(number, blocks)
        part, image_group = t.srem(left, a.parts), t.sdiv(left, a.parts)
        group, image = t.srem(image_group, a.groups), t.sdiv(image_group, a.groups)
        start = t.mul(part, a.part)
        count = t.smin(a.part, t.sub(a.pixels, start))
        tiles = Tiles.of(t, tile, count)
        with t.when(once_for(t, SCRATCH, 0, left)):
            source = t.ptr_add(t.ptr_add(a.x, t.mul(image, a.image_step)), t.mul(group, a.group_step))
            _pack(t, tile, a, of, tiles, source, taps, start)
        packed = t.add(t.mul(group, blocks), filter_block)
        corner = Corner(image, group, packed, t.mul(filter_block, tile.block), start, count)
        channel = t.add(t.mul(image_group, a.filters), corner.first_filter)
        results = t.ptr_add(a.y, t.add(t.mul(channel, t.mul(a.pixels, 4)), t.mul(start, 4)))
        _pieces(t, tile, a, corner, tiles, t.mul(a.channels, taps), results)
        finish = Results(a.b, a.r, a.r_image, a.filters, a.pixels, target)
        write_transposed(t, tile, finish, corner, a.sums, results)
    return kernel_function(t)


def _pieces(
    t: VectorBuilder, tile: RegisterTile, a: FewPixelsKxkArgs, at: Corner, tiles: Tiles, steps: I64, results: Ptr
) -> None:
    """Go through the steps piece by piece, and through the pixels register tile by register tile."""
    row = 4 * tile.block
    weights = t.ptr_add(a.w, t.mul(t.mul(at.packed, steps), row))
    with t.loop(0, t.ceil_div(steps, a.piece)) as piece:
        first = t.mul(piece, a.piece)
        some = t.smin(a.piece, t.sub(steps, first))
        w, size = t.ptr_add(weights, t.mul(first, row)), t.mul(some, row)
        is_first = t.icmp("eq", piece, 0)
        is_last = t.icmp("eq", t.add(first, some), steps)
        with t.loop(0, tiles.count) as number:
            begin = tiles.begin(t, number)
            if tile.epilogue.rows is None:
                with t.when(is_last):
                    own = t.smin(tile.block, t.sub(a.filters, at.first_filter))
                    write_prefetched_rows(t, results, own, t.mul(a.pixels, 4), t.mul(begin, 4))
            x = t.ptr_add(a.packed, t.add(t.mul(number, a.tile_step), t.mul(first, 4 * tile.pixels)))
            # The tile goes on to its own pixels by itself: here they begin with the first.
            x = t.ptr_add(x, t.mul(begin, -4))
            write_broadcast_tile(t, tile, tiles, number, w, x, a.sums, 4 * tile.pixels, some, is_first, size)


def _pack(
    t: VectorBuilder,
    tile: RegisterTile,
    a: FewPixelsKxkArgs,
    of: Columns,
    tiles: Tiles,
    source: Ptr,
    taps: I64,
    start: I64,
) -> None:
    """Pack what all channels have for some pixels."""
    first_row = t.sdiv(start, a.out_width)
    within = t.ptr_add(a.seen, t.mul(t.srem(start, a.out_width), 4))
    with t.loop(0, a.channels) as channel:
        here = t.ptr_add(source, t.mul(channel, a.channel_step))
        # The next channel is far from this one: the hardware does not prefetch it.
        skipped = t.mul(t.mul(first_row, a.stride_rows), a.row_step)
        size = t.mul(t.mul(of.rows, a.stride_rows), a.row_step)
        prefetch_share(t, t.ptr_add(t.ptr_add(here, a.channel_step), skipped), size, 0, 1)
        of.pack(t, a, here, a.seen, first_row)
        onto = t.ptr_add(a.packed, t.mul(channel, t.mul(taps, 4 * tile.pixels)))
        t.call(_PACK, within, a.taps, taps, onto, a.tile_step, tiles.count, tiles.narrow, tiles.wider)

"""Convolution of 3 by 3 by Winograd's scheme, as LLVM's text, with filters in the lanes of vectors.

Patches of pixels are transformed to as many numbers each; for each of these spots there is one product of matrices,
patches by channels by filters; what it gives is transformed back and turned round. A tile is one block of filters for
some patches of one image, which lie in successive rows of a block of patches.
"""

from __future__ import annotations

from dovetail.codegen.llvm.module import Code, Written
from dovetail.targets.cpu.conv.broadcast_tile import tiles_text, write_tile, write_tiles
from dovetail.targets.cpu.conv.few_pixels.kernel import Square, turn_text
from dovetail.targets.cpu.conv.patch import (
    HEAD,
    KERNEL,
    WINDOW,
    BlockText,
    gather_text,
    write_layout,
    write_offsets,
)
from dovetail.targets.cpu.conv.winograd.deinterleave import dealt_text, write_dealt
from dovetail.targets.cpu.conv.winograd.scheme import FOUR, Scheme, along_both

SIZES = (
    *WINDOW, "channels", "filters", "image_step", "channel_step", "result_height", "result_width", "height_of_block",
    "parts", "part", "piece",
)  # fmt: skip
"""The sizes that the code is given, in their order. The window is a patch, its places are patches. `parts` tiles of
`part` patches share a block, which begins so many rows behind the one before; `block_rows` are those of one part. A
piece is some channels."""


def winograd_text(scheme: Scheme, square: Square) -> Code:
    """The kernel; `square` has patches for places."""
    vectors = square.vectors
    own = [_enter(scheme, square), _leave(scheme, square), _kernel(scheme, square)]
    shared = [turn_text(square), gather_text(vectors), dealt_text(vectors, scheme.out), tiles_text(square)]
    return Code.of("winograd" if scheme == FOUR else "winograd_2", own, shared)


def _enter(scheme: Scheme, square: Square) -> Written:
    """Transform the patches of one channel, row by row; each writes a whole vector, and the next one over its end."""
    t = BlockText(square.vectors.lanes)
    with t.loop("0", "%rows") as row, t.steps("0", "%columns", t.lanes) as column:
        here = t.at("%seen", t.times(t.plus(t.times(row, "%pitch"), column), 4))
        there = t.at("%onto", t.times(t.plus(t.times(row, "%columns"), column), 4))
        offsets = [t.let(f"load i64, ptr {t.at('%offsets', 8 * spot)}, align 8") for spot in range(scheme.spots)]
        pixels = [t.load(t.at(here, offset)) for offset in offsets]
        for spot, x in enumerate(along_both(t, scheme.into, pixels)):
            t.store(x, t.at(there, t.times("%spot_step", spot)))
    header = (
        "internal void @kernel.enter(ptr noalias readonly %seen, ptr noalias readonly %offsets, ptr noalias %onto, "
        "i64 %spot_step, i64 %rows, i64 %columns, i64 %pitch) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _leave(scheme: Scheme, square: Square) -> Written:
    """Transform sums [spot][patch][filter] of neighbours back to results [line][place][filter]."""
    t = BlockText(square.vectors.lanes)
    wide = 4 * square.block
    with t.loop("0", "%count") as patch, t.loop("0", str(square.filters)) as vector:
        by = t.times(vector, 4 * t.lanes)
        source = t.at("%sums", t.plus(t.times(patch, wide), by))
        sums = [t.load(t.at(source, t.times("%spot_step", spot))) for spot in range(scheme.spots)]
        target = t.at("%onto", t.plus(t.times(patch, scheme.out * wide), by))
        for i, x in enumerate(along_both(t, scheme.back, sums)):
            line = t.at(target, t.times("%line_step", i // scheme.out))
            t.store(x, t.at(line, wide * (i % scheme.out)))
    header = (
        "internal void @kernel.leave(ptr noalias readonly %sums, i64 %spot_step, ptr noalias %onto, i64 %line_step, "
        "i64 %count) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _kernel(scheme: Scheme, square: Square) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(square.vectors.lanes)
    lanes, block, epilogue, out, spots = t.lanes, square.block, square.epilogue, scheme.out, scheme.spots
    t.unpack(epilogue.pointers, (*SIZES, *epilogue.sizes(("r_image",))))
    # Scratch holds offsets of pixels, patches of all channels, sums, results, and what is seen of one channel.
    t(f"%room = getelementptr i8, ptr %scratch, i64 {HEAD}")
    of = write_layout(t)
    patches = t.at("%room", -(-8 * spots // 64) * 64)
    step = t.times(t.times("%block_rows", "%block_columns"), 4)
    # One vector more, which the last channel may write over, and so that spots fall on several sets of the cache.
    spot_step = t.plus(t.times(t.rounded_up(t.times(step, "%channels"), 64), 64), 4 * lanes)
    sums = t.at(patches, t.times(spot_step, spots))
    sums_step = t.plus(t.times("%part", 4 * block), 4 * lanes)
    results = t.at(sums, t.times(sums_step, spots))
    line_step = t.times("%block_columns", out * 4 * block)
    seen = t.at(results, t.times(t.times("%block_rows", out), line_step))
    write_offsets(t, of, "%room")
    blocks, area = t.rounded_up("%filters", block), t.times(t.times("%result_height", "%result_width"), 4)
    with t.loop("%begin", "%end") as tile:
        filter_block, left = t.rest(tile, blocks), t.quotient(tile, blocks)
        part, patch_block = t.rest(left, "%parts"), t.quotient(left, "%parts")
        column_block, behind = t.rest(patch_block, "%column_blocks"), t.quotient(patch_block, "%column_blocks")
        row_block, image = t.rest(behind, "%row_blocks"), t.quotient(behind, "%row_blocks")
        top, first_column = t.times(row_block, "%height_of_block"), t.times(column_block, "%block_columns")
        columns = t.least("%block_columns", t.minus("%out_width", first_column))
        held = t.times(t.least("%height_of_block", t.minus("%out_height", top)), columns)
        start = t.times(part, "%part")
        stop = t.least(held, t.plus(start, "%part"))
        count = t.minus(stop, start)
        upper, lower = t.quotient(start, columns), t.rounded_up(stop, columns)
        first_row = t.plus(top, upper)
        fresh = t.let(f"icmp ne i64 {left}, {t.let('load i64, ptr %scratch, align 8')}")
        t(f"store i64 {left}, ptr %scratch, align 8")
        with t.when(fresh), t.loop("0", "%channels") as channel:
            source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(channel, "%channel_step"))
            write_dealt(t, of, out, source, seen, first_row, first_column)
            onto = t.at(patches, t.times(channel, step))
            t(f"call void @kernel.enter(ptr {seen}, ptr %room, ptr {onto}, i64 {spot_step}, "
              f"i64 {t.minus(lower, upper)}, i64 {columns}, i64 {of.pitch})")  # fmt: skip
        tiles = write_tiles(t, square, count)
        before = t.minus(start, t.times(upper, columns))
        with t.loop("0", str(spots)) as spot, t.loop("0", t.rounded_up("%channels", "%piece")) as piece:
            first = t.times(piece, "%piece")
            some = t.least("%piece", t.minus("%channels", first))
            number = t.plus(t.times(filter_block, spots), spot)
            w = t.at("%w", t.times(t.plus(t.times(number, "%channels"), first), 4 * block))
            x = t.at(patches, t.plus(t.plus(t.times(spot, spot_step), t.times(first, step)), t.times(before, 4)))
            size = t.times(some, 4 * block)
            is_first = t.let(f"icmp eq i64 {piece}, 0")
            onto, given = t.at(sums, t.times(spot, sums_step)), f"i64 {step}, i64 {some}"
            with t.loop("0", tiles.count) as number:
                write_tile(t, square, tiles, number, w, x, onto, given, is_first, size)
        with t.loop(upper, lower) as row:
            begin = t.most(start, t.times(row, columns))
            length = t.minus(t.least(stop, t.times(t.plus(row, 1), columns)), begin)
            column = t.minus(begin, t.times(row, columns))
            here = t.at(sums, t.times(t.minus(begin, start), 4 * block))
            place = t.times(t.times(t.minus(row, upper), out), line_step)
            onto = t.at(results, t.plus(place, t.times(column, out * 4 * block)))
            t(f"call void @kernel.leave(ptr {here}, i64 {sums_step}, ptr {onto}, i64 {line_step}, i64 {length})")
            first_line, first_place = t.times(t.plus(top, row), out), t.times(t.plus(first_column, column), out)
            lines = t.least(out, t.minus("%result_height", first_line))
            places = t.least(t.times(length, out), t.minus("%result_width", first_place))
            corner = t.plus(t.times(first_line, "%result_width"), first_place)
            with t.loop("0", lines) as line, t.loop("0", str(square.filters)) as vector:
                first = t.plus(t.times(filter_block, block), t.times(vector, lanes))
                own = t.least(lanes, t.minus("%filters", first))
                with t.when(t.let(f"icmp sgt i64 {own}, 0")):
                    bias = t.at("%b", t.times(first, 4)) if epilogue.bias else "%w"
                    at = t.plus(t.times(first, area), t.times(t.plus(corner, t.times(line, "%result_width")), 4))
                    target = t.at("%y", t.plus(t.times(t.times(image, "%filters"), area), at))
                    beside = t.at(t.at("%r", t.times(image, "%r_image")), at) if epilogue.residual else "%w"
                    here = t.at(onto, t.plus(t.times(line, line_step), t.times(vector, 4 * lanes)))
                    given = f"ptr {here}, ptr {bias}, ptr {beside}, ptr {target}, i64 {area}, i64 {own}, i64 {places}"
                    t(f"call void @kernel.turn({given}, i64 {4 * block})")
    return t.function(KERNEL), tuple(t.used)

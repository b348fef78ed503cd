"""Convolution of few channels by a large window, as LLVM's text: filters in the lanes of vectors, rows of places.

A tile is one block of filters at some rows of one image. What these rows see is laid out by phases of the strides, so
that the places of a row see numbers in a row; a register tile is a few places of one row. All weights of a block of
filters stay in the first cache. The sums of a row are turned round when it is done.
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
    write_gather,
    write_layout,
    write_offsets,
)

SIZES = (*WINDOW, "channels", "filters", "image_step", "channel_step")
"""The sizes that the code is given, in their order; steps are bytes. A block has all columns."""


def row_text(square: Square) -> Code:
    """The kernel."""
    shared = [turn_text(square), gather_text(square.vectors), tiles_text(square)]
    return Code.of("row_conv", [_kernel(square)], shared)


def _kernel(square: Square) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(square.vectors.lanes)
    lanes, block, epilogue = t.lanes, square.block, square.epilogue
    t.unpack(epilogue.pointers, (*SIZES, *epilogue.sizes(("r_image",))))
    t(f"%room = getelementptr i8, ptr %scratch, i64 {HEAD}")
    # Scratch holds the offsets of taps, moves from one to the next, the sums of a row, and what is seen.
    of = write_layout(t)
    steps = t.times("%channels", of.taps)
    moves = t.at("%room", t.times(t.rounded_up(of.taps, 8), 64))
    sums = t.at(moves, t.times(t.rounded_up(steps, 8), 64))
    seen = t.at(sums, t.times("%out_width", 4 * block))
    write_offsets(t, of, "%room")
    with t.loop("0", steps) as number:
        now, then = (_offset(t, of.taps, of.channel, t.plus(number, i)) for i in range(2))
        t(f"store i64 {t.minus(then, now)}, ptr {t.let(f'getelementptr i64, ptr {moves}, i64 {number}')}, align 8")
    blocks, tiles = t.rounded_up("%filters", block), write_tiles(t, square, "%out_width")
    area, row_size = t.times(t.times("%out_height", "%out_width"), 4), t.times("%out_width", 4)
    with t.loop("%begin", "%end") as tile:
        filter_block, left = t.rest(tile, blocks), t.quotient(tile, blocks)
        row_block, image = t.rest(left, "%row_blocks"), t.quotient(left, "%row_blocks")
        first_row = t.times(row_block, "%block_rows")
        fresh = t.let(f"icmp ne i64 {left}, {t.let('load i64, ptr %scratch, align 8')}")
        t(f"store i64 {left}, ptr %scratch, align 8")
        with t.when(fresh), t.loop("0", "%channels") as channel:
            source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(channel, "%channel_step"))
            write_gather(t, of, source, t.at(seen, t.times(channel, of.channel)), first_row, "0")
        weights = t.at("%w", t.times(t.times(filter_block, steps), 4 * block))
        own_filters = t.least(block, t.minus("%filters", t.times(filter_block, block)))
        with t.loop(first_row, t.least("%out_height", t.plus(first_row, "%block_rows"))) as row:
            x = t.at(seen, t.times(t.times(t.minus(row, first_row), of.pitch), 4))
            channel = t.plus(t.times(image, "%filters"), t.times(filter_block, block))
            results = t.at("%y", t.plus(t.times(channel, area), t.times(row, row_size)))
            with t.loop("0", tiles.count) as number:
                # Where results go nobody was for long.
                with t.loop("0", own_filters) as one:
                    by = t.times(t.times(number, tiles.narrow), 4)
                    t.fetch_to_write(t.at(results, t.plus(t.times(one, area), by)))
                write_tile(t, square, tiles, number, weights, x, sums, f"ptr {moves}, i64 {steps}", "true", "0")
            with t.loop("0", str(square.filters)) as vector:
                first = t.plus(t.times(filter_block, block), t.times(vector, lanes))
                own = t.least(lanes, t.minus("%filters", first))
                with t.when(t.let(f"icmp sgt i64 {own}, 0")):
                    bias = t.at("%b", t.times(first, 4)) if epilogue.bias else "%w"
                    at = t.plus(t.times(first, area), t.times(row, row_size))
                    target = t.at("%y", t.plus(t.times(t.times(image, "%filters"), area), at))
                    beside = t.at(t.at("%r", t.times(image, "%r_image")), at) if epilogue.residual else "%w"
                    given = f"ptr {t.at(sums, t.times(vector, 4 * lanes))}, ptr {bias}, ptr {beside}, ptr {target}"
                    t(f"call void @kernel.turn({given}, i64 {area}, i64 {own}, i64 %out_width, i64 {4 * block})")
    return t.function(KERNEL), tuple(t.used)


def _offset(t: BlockText, taps: str, channel: str, number: str) -> str:
    """How many bytes behind a place's own a tap of a channel sees; what comes behind the last channel is not read."""
    listed = t.let(f"getelementptr i64, ptr %room, i64 {t.rest(number, taps)}")
    return t.plus(t.times(t.quotient(number, taps), channel), t.let(f"load i64, ptr {listed}, align 8"))

"""Convolution over few places by a window, as LLVM's text: filters in the lanes of vectors, so that none is left empty.

A tile is one block of filters at some places of one image. What these see is laid out as register tiles read it: tap by
tap of every channel, a few places side by side. Sums are turned round at the end.
"""

from __future__ import annotations

from dovetail.codegen.llvm.module import Code, Written
from dovetail.targets.cpu.conv.broadcast_tile import Tiles, tiles_text, write_begin, write_tile, write_tiles
from dovetail.targets.cpu.conv.few_pixels.columns import Columns, columns_text, write_planes
from dovetail.targets.cpu.conv.few_pixels.kernel import Square, Turned, turn_text, write_turned
from dovetail.targets.cpu.conv.patch import HEAD, KERNEL, WINDOW, BlockText

SIZES = (
    *WINDOW, "channels", "filters", "groups", "image_step", "group_step", "channel_step", "places", "parts", "part",
    "piece",
)  # fmt: skip
"""The sizes that the code is given, in their order. `parts` tiles of `part` places each share an image, in so many rows
of a block; a piece is some steps."""
APART = 64
"""Bytes between what two register tiles see: a vector may end there."""


def window_text(square: Square) -> Code:
    """The kernel."""
    shared = [turn_text(square), columns_text(square.vectors), tiles_text(square)]
    return Code.of("window_conv", [_lay(square), _kernel(square)], shared)


def _lay(square: Square) -> Written:
    """Lay out what the register tiles see of one channel; each vector is written over by what comes behind it."""
    t = BlockText(square.vectors.lanes)
    wide = 4 * square.places
    vectors = -(-square.places // t.lanes)
    with t.loop("0", "%tiles") as number:
        begin = t.plus(t.times(number, "%narrow"), t.least(number, "%wider"))
        source, target = t.at("%seen", t.times(begin, 4)), t.at("%onto", t.times(number, "%tile_step"))
        with t.loop("0", "%taps") as tap:
            offset = t.let(f"load i64, ptr {t.let(f'getelementptr i64, ptr %offsets, i64 {tap}')}, align 8")
            here, there = t.at(source, offset), t.at(target, t.times(tap, wide))
            for i in range(vectors):
                t.store(t.load(t.at(here, 4 * t.lanes * i)), t.at(there, 4 * t.lanes * i))
    header = (
        "internal void @kernel.lay(ptr noalias readonly %seen, ptr noalias readonly %offsets, i64 %taps, "
        "ptr noalias %onto, i64 %tile_step, i64 %tiles, i64 %narrow, i64 %wider) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _kernel(square: Square) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(square.vectors.lanes)
    block = square.block
    t.unpack(square.epilogue.pointers, (*SIZES, *square.epilogue.sizes(("r_image",))))
    t(f"%room = getelementptr i8, ptr %scratch, i64 {HEAD}")
    # Scratch holds the offsets of taps, sums, what register tiles see, and what is seen of one channel.
    of = write_planes(t)
    taps = t.times("%window_rows", "%window_columns")
    steps = t.times("%channels", taps)
    sums = t.at("%room", t.times(t.rounded_up(taps, 8), 64))
    laid = t.at(sums, t.times("%part", 4 * block))
    tile_step = t.plus(t.times(t.rounded_up(t.times(steps, 4 * square.places), 64), 64), APART)
    seen = t.at(laid, t.times(tile_step, t.rounded_up("%part", square.places)))
    with t.loop("0", taps) as tap:
        t(f"store i64 {of.offset(t, tap)}, ptr {t.let(f'getelementptr i64, ptr %room, i64 {tap}')}, align 8")
    blocks = t.rounded_up("%filters", block)
    with t.loop("%begin", "%end") as tile:
        # Who has the same places all the way through a network finds what it reads in its own cache.
        filter_block, left = t.rest(tile, blocks), t.quotient(tile, blocks)
        part, image_group = t.rest(left, "%parts"), t.quotient(left, "%parts")
        group, image = t.rest(image_group, "%groups"), t.quotient(image_group, "%groups")
        start = t.times(part, "%part")
        count = t.least("%part", t.minus("%places", start))
        tiles = write_tiles(t, square, count)
        fresh = t.let(f"icmp ne i64 {left}, {t.let('load i64, ptr %scratch, align 8')}")
        t(f"store i64 {left}, ptr %scratch, align 8")
        with t.when(fresh):
            source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(group, "%group_step"))
            _see(t, square, of, tiles, source, seen, laid, taps, tile_step, start)
        packed = t.plus(t.times(group, blocks), filter_block)
        area, first_filter = t.times("%places", 4), t.times(filter_block, block)
        own_channel = t.plus(t.times(image_group, "%filters"), first_filter)
        results = t.at("%y", t.plus(t.times(own_channel, area), t.times(start, 4)))
        weights = t.at("%w", t.times(t.times(packed, steps), 4 * block))
        with t.loop("0", t.rounded_up(steps, "%piece")) as piece:
            first = t.times(piece, "%piece")
            some = t.least("%piece", t.minus(steps, first))
            w, size = t.at(weights, t.times(first, 4 * block)), t.times(some, 4 * block)
            is_first = t.let(f"icmp eq i64 {piece}, 0")
            is_last = t.let(f"icmp eq i64 {t.plus(first, some)}, {steps}")
            with t.loop("0", tiles.count) as number:
                begin = write_begin(t, tiles, number)
                # Where results go nobody was for long.
                with t.when(is_last), t.loop("0", t.least(block, t.minus("%filters", first_filter))) as one:
                    t.fetch_to_write(t.at(results, t.plus(t.times(one, area), t.times(begin, 4))))
                x = t.at(laid, t.plus(t.times(number, tile_step), t.times(first, 4 * square.places)))
                # The tile goes on to its own places by itself: here they begin with the first.
                x = t.at(x, t.times(begin, -4))
                write_tile(t, square, tiles, number, w, x, sums, f"i64 {4 * square.places}, i64 {some}", is_first, size)
        write_turned(t, square, Turned(image, group, packed, first_filter, start, count), sums, results)
    return t.function(KERNEL), tuple(t.used)


def _see(
    t: BlockText, square: Square, of: Columns, tiles: Tiles, source: str, seen: str, laid: str, taps: str,
    tile_step: str, start: str,
) -> None:  # fmt: skip
    """Instructions that lay out what all channels have for some places."""
    first_row = t.quotient(start, "%out_width")
    within = t.at(seen, t.times(t.rest(start, "%out_width"), 4))
    with t.loop("0", "%channels") as channel:
        here = t.at(source, t.times(channel, "%channel_step"))
        # The next channel lies far from this one: nobody else asks for it ahead.
        skipped = t.times(t.times(first_row, "%stride_rows"), "%row_step")
        size = t.times(t.times(of.rows, "%stride_rows"), "%row_step")
        t.fetch(t.at(t.at(here, "%channel_step"), skipped), size, "0", "1")
        of.write(t, here, seen, first_row)
        onto = t.at(laid, t.times(channel, t.times(taps, 4 * square.places)))
        given = f"ptr {within}, ptr %room, i64 {taps}, ptr {onto}, i64 {tile_step}"
        t(f"call void @kernel.lay({given}, i64 {tiles.count}, i64 {tiles.narrow}, i64 {tiles.wider})")

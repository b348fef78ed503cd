"""Convolution of 3 by 3 over few places by Winograd's scheme, as LLVM's text: 16 multiplications for 2 by 2 results
instead of 36, with filters in the lanes of vectors.

Patches of 4 by 4 pixels, 2 apart, are transformed to 16 numbers each; for each of the 16 there is one product of
matrices, patches by channels by filters; what it gives is transformed back and turned round. A tile is one block of
filters for all patches of one image.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.kernels.conv_block import (
    HEAD,
    KERNEL,
    WINDOW,
    BlockText,
    Code,
    Written,
    gather_text,
    write_layout,
    write_offsets,
)
from dovetail.kernels.conv_dealt import dealt_text, write_dealt
from dovetail.kernels.conv_epilogue import AT_ONCE, Epilogue, finish_text
from dovetail.kernels.conv_small_text import Square, square_name, square_text, turn_text
from dovetail.kernels.winograd_text import along_both

POINTS = (0.0, 1.0, -1.0)
"""The points of the scheme beside infinity."""
OUT, PATCH = 2, 4
"""Results of a patch along an axis, and pixels that they see."""
SPOTS = PATCH * PATCH
SIZES = (*WINDOW, "channels", "filters", "image_step", "channel_step", "result_height", "result_width", "piece")
"""The sizes that the code is given, in their order. The window is a patch, its places are patches; a piece is some
channels."""


def winograd_small_text(square: Square) -> Code:
    """The kernel; `square` has patches for places."""
    finish = finish_text(square.vectors.lanes, Epilogue(square.epilogue.act))
    own = [finish, _enter(square), _leave(square), turn_text(square), _kernel(square)]
    return Code.of(
        "winograd_small", own, [gather_text(square.vectors), dealt_text(square.vectors, OUT), square_text(square)]
    )


def _into(t: BlockText, d: Sequence[str]) -> list[str]:
    """Four pixels along an axis, transformed."""
    return [t.sub(d[2], d[0]), t.add(d[1], d[2]), t.sub(d[2], d[1]), t.sub(d[3], d[1])]


def _back(t: BlockText, m: Sequence[str]) -> list[str]:
    """Four sums along an axis, transformed to two results."""
    return [t.add(m[0], t.add(m[1], m[2])), t.add(t.sub(m[1], m[2]), m[3])]


def _enter(square: Square) -> Written:
    """Transform the patches of one channel, those between rows included; the last vector may end behind them."""
    t = BlockText(square.vectors.lanes)
    with t.steps("0", "%count", t.lanes) as patch:
        here, there = t.at("%seen", t.times(patch, 4)), t.at("%onto", t.times(patch, 4))
        offsets = [t.let(f"load i64, ptr {t.at('%offsets', 8 * spot)}, align 8") for spot in range(SPOTS)]
        pixels = [t.load(t.at(here, offset)) for offset in offsets]
        lines = [pixels[PATCH * i : PATCH * (i + 1)] for i in range(PATCH)]
        for spot, x in enumerate(along_both(t, _into, lines)):
            t.store(x, t.at(there, t.times("%spot_step", spot)))
    header = (
        "internal void @kernel.enter(ptr noalias readonly %seen, ptr noalias readonly %offsets, ptr noalias %onto, "
        "i64 %spot_step, i64 %count) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _leave(square: Square) -> Written:
    """Transform sums [spot][patch][filter] back to results [place][filter]; what is beyond the image comes behind."""
    t = BlockText(square.vectors.lanes)
    wide = 4 * square.block
    with t.loop("0", "%rows") as row, t.loop("0", "%columns") as column:
        patch = t.plus(t.times(row, "%columns"), column)
        targets: list[str] = []
        for i in range(SPOTS // PATCH):
            down, across = t.plus(t.times(row, OUT), i // OUT), t.plus(t.times(column, OUT), i % OUT)
            inside = t.let(
                f"and i1 {t.let(f'icmp slt i64 {down}, %height')}, {t.let(f'icmp slt i64 {across}, %width')}"
            )
            place = t.plus(t.times(down, "%width"), across)
            targets.append(t.at("%onto", t.times(t.chosen(inside, place, t.times("%height", "%width")), wide)))
        source = t.at("%sums", t.times(patch, wide))
        for vector in range(square.filters):
            by = 4 * t.lanes * vector
            sums = [t.load(t.at(source, t.plus(t.times("%spot_step", spot), by))) for spot in range(SPOTS)]
            lines = [sums[PATCH * i : PATCH * (i + 1)] for i in range(PATCH)]
            for target, x in zip(targets, along_both(t, _back, lines), strict=True):
                t.store(x, t.at(target, by))
    header = (
        "internal void @kernel.leave(ptr noalias readonly %sums, i64 %spot_step, ptr noalias %onto, i64 %rows, "
        "i64 %columns, i64 %height, i64 %width) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _kernel(square: Square) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(square.vectors.lanes)
    lanes, block, epilogue = t.lanes, square.block, square.epilogue
    t.unpack(epilogue.pointers, (*SIZES, *epilogue.sizes(("r_image",))))
    # Scratch holds offsets of pixels and of patches, patches of all channels, sums, results, and what is seen of one
    # channel.
    t(f"%room = getelementptr i8, ptr %scratch, i64 {HEAD}")
    of = write_layout(t)
    count, places = t.times("%out_height", "%out_width"), t.times("%result_height", "%result_width")
    tiles = t.rounded_up(count, square.places)
    where = t.at("%room", 8 * SPOTS)
    patches = t.at(where, t.times(t.rounded_up(t.times(tiles, square.places), 8), 64))
    step = t.times(of.run, 4)
    # One vector more, which the last channel may write over, and so that spots fall on several sets of the cache.
    spot_step = t.plus(t.times(t.rounded_up(t.times(step, "%channels"), 64), 64), 4 * lanes)
    sums = t.at(patches, t.times(spot_step, SPOTS))
    sums_step = t.times(t.times(tiles, square.places), 4 * block)
    results = t.at(sums, t.times(sums_step, SPOTS))
    seen = t.at(results, t.times(t.plus(places, 1), 4 * block))
    write_offsets(t, of, "%room")
    with t.loop("0", t.times(tiles, square.places)) as number:
        # Behind the last patch the last one is computed again.
        patch = t.least(number, t.minus(count, 1))
        line = t.times(t.quotient(patch, "%out_width"), of.pitch)
        offset = t.times(t.plus(line, t.rest(patch, "%out_width")), 4)
        t(f"store i64 {offset}, ptr {t.let(f'getelementptr i64, ptr {where}, i64 {number}')}, align 8")
    blocks, area = t.rounded_up("%filters", block), t.times(places, 4)
    with t.loop("%begin", "%end") as tile:
        filter_block, image = t.rest(tile, blocks), t.quotient(tile, blocks)
        fresh = t.let(f"icmp ne i64 {image}, {t.let('load i64, ptr %scratch, align 8')}")
        t(f"store i64 {image}, ptr %scratch, align 8")
        with t.when(fresh), t.loop("0", "%channels") as channel:
            source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(channel, "%channel_step"))
            write_dealt(t, of, OUT, source, seen, "0", "0")
            onto = t.at(patches, t.times(channel, step))
            t(f"call void @kernel.enter(ptr {seen}, ptr %room, ptr {onto}, i64 {spot_step}, i64 {of.run})")
        with t.loop("0", str(SPOTS)) as spot, t.loop("0", t.rounded_up("%channels", "%piece")) as piece:
            first = t.times(piece, "%piece")
            some = t.least("%piece", t.minus("%channels", first))
            number = t.plus(t.times(filter_block, SPOTS), spot)
            w = t.at("%w", t.times(t.plus(t.times(number, "%channels"), first), 4 * block))
            x = t.at(patches, t.plus(t.times(spot, spot_step), t.times(first, step)))
            size = t.times(some, 4 * block)
            is_first = t.let(f"icmp eq i64 {piece}, 0")
            with t.loop("0", tiles) as number:
                begin = t.times(number, square.places)
                there = t.let(f"getelementptr i64, ptr {where}, i64 {begin}")
                onto = t.at(sums, t.plus(t.times(spot, sums_step), t.times(begin, 4 * block)))
                t.fetch(t.at(w, size), size, number, tiles)
                given = f"ptr {w}, ptr {x}, i64 {step}, ptr %room, i64 1, i64 {some}, ptr {there}, ptr {onto}"
                t(f"call void {square_name(square)}({given}, i1 {is_first})")
        t(f"call void @kernel.leave(ptr {sums}, i64 {sums_step}, ptr {results}, i64 %out_height, i64 %out_width, "
          "i64 %result_height, i64 %result_width)")  # fmt: skip
        with t.loop("0", str(square.filters)) as vector:
            first = t.plus(t.times(filter_block, block), t.times(vector, lanes))
            own = t.least(lanes, t.minus("%filters", first))
            with t.when(t.let(f"icmp sgt i64 {own}, 0")):
                bias = t.at("%b", t.times(first, 4)) if epilogue.bias else "%w"
                target = t.at("%y", t.times(t.plus(t.times(image, "%filters"), first), area))
                beside = "%w"
                if epilogue.residual:
                    beside = t.at(t.at("%r", t.times(image, "%r_image")), t.times(first, area))
                here = t.at(results, t.times(vector, 4 * lanes))
                given = f"ptr {here}, ptr {bias}, ptr {beside}, ptr {target}, i64 {area}, i64 {own}, i64 {places}"
                t(f"call void @kernel.turn({given})")
                if epilogue.act not in AT_ONCE:
                    with t.loop("0", own) as row:
                        t(f"call void @kernel.finish(ptr {t.at(target, t.times(row, area))}, i64 {places})")
    return t.function(KERNEL), tuple(t.used)

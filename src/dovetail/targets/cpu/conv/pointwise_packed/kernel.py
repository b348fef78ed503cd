"""Convolution by a window of one pixel with filters in the lanes of vectors, as LLVM's text.

A tile is some panels of filters at some places of one image. What the places see is laid out once, as register tiles
read it: a few places side by side, channel by channel. While a panel's weights are multiplied, what comes next is asked
for, a line at a time, so that nobody waits for memory; sums are turned round where a panel is done.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.codegen.llvm.module import Code, Written
from dovetail.targets.cpu.conv.epilogue import activated
from dovetail.targets.cpu.conv.few_pixels.kernel import Square, turn_text
from dovetail.targets.cpu.conv.patch import HEAD, KERNEL, BlockText
from dovetail.targets.cpu.conv.pointwise_packed.micro_kernel import UNROLLED, asked_rows, tile_name, tile_text
from dovetail.targets.cpu.conv.pointwise_packed.pack import FORMS, pack_name, pack_text, tile_step

SIZES = (
    "places", "groups", "channels", "filters", "image_step", "group_step", "channel_step",
    "place_parts", "place_part", "filter_parts", "filter_part", "width", "row_step", "column_step",
)  # fmt: skip
"""The sizes that the code is given, in their order. Steps are bytes; channels and filters are those of one group.
A part of places is some register tiles, one of filters some panels; a row has `width` places."""
PIECE = 128
"""Channels that are summed at a time, at most: a sum of a thousand in one go would err twice as much."""
_LINE = 64


def panel_text(square: Square, lines: int) -> Code:
    """The kernel; so many lines of what is next are asked for in each turn."""
    # Sums begin with the bias.
    biased = replace(square, epilogue=replace(square.epilogue, bias=False))
    shared = [turn_text(biased), _turn_text(square), pack_text(square), tile_text(square, lines)]
    return Code.of("panel_conv", [_kernel(square, lines)], shared)


def _turn_text(square: Square) -> Written:
    """Sums [place][filter] of one vector of filters as results, where places and filters fill whole vectors."""
    t = BlockText(square.vectors.lanes)
    epilogue = square.epilogue
    with t.loop("0", "%vectors") as number:
        sums = t.at("%sums", t.times(number, 4 * t.lanes * square.block))
        rows = [t.load(t.at(sums, 4 * square.block * i)) for i in range(t.lanes)]
        if not epilogue.residual:
            rows = [activated(t, epilogue.act, x) for x in rows]
        place = t.times(number, 4 * t.lanes)
        for i, x in enumerate(t.transposed(rows)):
            by = t.plus(t.times("%step", i), place)
            if epilogue.residual:
                x = activated(t, epilogue.act, t.add(x, t.load(t.at("%r", by))))
            t.store(x, t.at("%y", by))
    header = (
        "void @kernel.turn_whole(ptr noalias readonly %sums, ptr %r, ptr %y, i64 %step, i64 %vectors) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _kernel(square: Square, lines: int) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(square.vectors.lanes)
    lanes, block, epilogue = t.lanes, square.block, square.epilogue
    t.unpack(epilogue.pointers, (*SIZES, *epilogue.sizes(("r_image",))))
    # Scratch holds sums of a panel, what the places see, and where they see it.
    sums = t.let(f"getelementptr i8, ptr %scratch, i64 {HEAD}")
    seen = t.at(sums, t.times("%place_part", 4 * block))
    step = tile_step(t, square)
    where = t.at(seen, t.times(t.quotient("%place_part", square.places), step))
    panels = t.rounded_up("%filters", block)
    area = t.times("%places", 4)
    size = t.times("%channels", 4 * block)
    turns = t.times(t.quotient("%channels", UNROLLED), lines)
    pieces = t.rounded_up("%channels", PIECE)
    deep = t.times(t.rounded_up(t.rounded_up("%channels", pieces), UNROLLED), UNROLLED)
    side = t.let(f"icmp eq i64 %row_step, {t.times('%width', '%column_step')}")
    near = t.let(f"and i1 {side}, {t.let('icmp eq i64 %column_step, 4')}")
    with t.loop("%begin", "%end") as tile:
        filter_part, block_number = t.rest(tile, "%filter_parts"), t.quotient(tile, "%filter_parts")
        place_part, image_group = t.rest(block_number, "%place_parts"), t.quotient(block_number, "%place_parts")
        group, image = t.rest(image_group, "%groups"), t.quotient(image_group, "%groups")
        start = t.times(place_part, "%place_part")
        count = t.least("%place_part", t.minus("%places", start))
        tiles = t.rounded_up(count, square.places)
        source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(group, "%group_step"))
        fresh = t.let(f"icmp ne i64 {block_number}, {t.let('load i64, ptr %scratch, align 8')}")
        t(f"store i64 {block_number}, ptr %scratch, align 8")
        with t.when(fresh):
            with t.loop("0", count) as number:
                place = t.plus(start, number)
                down = t.times(t.quotient(place, "%width"), "%row_step")
                offset = t.plus(down, t.times(t.rest(place, "%width"), "%column_step"))
                t(f"store i64 {offset}, ptr {t.let(f'getelementptr i64, ptr {where}, i64 {number}')}, align 8")
            panel = t.plus(t.times(group, panels), t.times(filter_part, "%filter_part"))
            given = (
                f"ptr {source}, ptr {seen}, i64 %channel_step, i64 %channels, i64 {count}, ptr {where}, "
                f"ptr {t.at('%w', t.times(panel, size))}"
            )
            cut = t.let(f"or i64 {t.rest('%width', square.places)}, {t.rest(count, square.places)}")
            pair = t.let("icmp eq i64 %column_step, 8")
            even = t.let(f"and i1 {pair}, {t.let(f'icmp eq i64 {cut}, 0')}")
            form = t.chosen(near, FORMS["near"], t.chosen(even, FORMS["second"], FORMS["apart"]))
            t(f"call void {pack_name(square)}({given}, i64 {form})")
        first_panel = t.times(filter_part, "%filter_part")
        with t.loop(first_panel, t.least(panels, t.plus(first_panel, "%filter_part"))) as panel:
            packed = t.plus(t.times(group, panels), panel)
            weights = t.at("%w", t.times(packed, size))
            bias = t.at("%b", t.times(packed, 4 * block)) if epilogue.bias else "%w"
            first_filter = t.times(panel, block)
            own_row = t.plus(t.times(t.plus(t.times(group, "%filters"), first_filter), area), t.times(start, 4))
            results = t.at("%y", t.plus(t.times(t.times(image, t.times("%groups", "%filters")), area), own_row))
            beside = t.at(t.at("%r", t.times(image, "%r_image")), own_row) if epilogue.residual else "%w"
            asked = asked_rows(square)
            with t.loop("0", tiles) as number:
                begin = t.times(number, square.places)
                line = t.plus(t.times(t.times(t.rest(number, block // asked), asked), area), t.times(begin, 4))
                following = t.at(t.at(weights, size), t.times(t.times(number, turns), _LINE))
                sees, onto = t.at(seen, t.times(number, step)), t.at(sums, t.times(begin, 4 * block))
                with t.loop("0", pieces) as piece:
                    before = t.times(piece, deep)
                    some = t.least(deep, t.minus("%channels", before))
                    asked_before = t.times(t.quotient(before, UNROLLED), lines * _LINE)
                    given = (
                        f"ptr {t.at(weights, t.times(before, 4 * block))}, "
                        f"ptr {t.at(sees, t.times(before, 4 * square.places))}, i64 {some}, ptr {bias}, ptr {onto}, "
                        f"i1 {t.let(f'icmp eq i64 {piece}, 0')}, ptr {t.at(following, asked_before)}, "
                        f"ptr {t.at(results, line)}, ptr {t.at(beside, line)}, i64 {area}"
                    )
                    t(f"call void {tile_name(square, lines)}({given})")
            with t.loop("0", str(square.filters)) as vector:
                own = t.least(lanes, t.minus("%filters", t.plus(first_filter, t.times(vector, lanes))))
                by = t.times(t.times(vector, lanes), area)
                target, here, other = t.at(results, by), t.at(sums, t.times(vector, 4 * lanes)), t.at(beside, by)
                full = t.let(f"icmp eq i64 {own}, {lanes}")
                whole = t.chosen(full, t.quotient(count, lanes), 0)
                with t.when(full):
                    t(f"call void @kernel.turn_whole(ptr {here}, ptr {other}, ptr {target}, i64 {area}, i64 {whole})")
                done = t.times(whole, lanes)
                left = t.minus(count, done)
                some = t.let(f"and i1 {t.let(f'icmp sgt i64 {own}, 0')}, {t.let(f'icmp sgt i64 {left}, 0')}")
                with t.when(some):
                    on = t.times(done, 4)
                    given = (
                        f"ptr {t.at(here, t.times(done, 4 * block))}, ptr %w, ptr {t.at(other, on)}, "
                        f"ptr {t.at(target, on)}, i64 {area}, i64 {own}, i64 {left}"
                    )
                    t(f"call void @kernel.turn({given}, i64 {4 * block})")
    return t.function(KERNEL), tuple(t.used)

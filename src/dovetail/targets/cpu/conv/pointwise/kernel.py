"""Convolution by a window of one pixel, as LLVM's text: a product of matrices that reads the image where it lies.

A tile is some filters at some bands of places, each a few vectors. The channels are taken some at a time, so that what
a band sees of them stays in the first cache while the filters go over it. The band whose last vector is not whole is
copied, and its results go through scratch.
"""

from __future__ import annotations

from dovetail.codegen.llvm.module import Code, Written, one_of
from dovetail.targets.cpu.conv.direct.kernel import Shape
from dovetail.targets.cpu.conv.epilogue import Epilogue, activated, finish_text
from dovetail.targets.cpu.conv.patch import HEAD, KERNEL, BlockText

SIZES = (
    "places", "groups", "channels", "filters", "image_step", "group_step", "channel_step",
    "place_parts", "place_part", "filter_parts", "filter_part", "depth",
)  # fmt: skip
"""The sizes that the code is given, in their order. Steps are bytes; channels and filters are those of one group.
A part of places is some bands, one of filters some register tiles; `depth` channels go together."""


def point_text(shape: Shape) -> Code:
    """The kernel."""
    tiles = one_of(_name(shape), {columns: tile_text(shape, columns) for columns in range(1, shape.columns + 1)})
    # The residual is what sums begin with.
    finish = finish_text(shape.vectors.lanes, Epilogue(shape.epilogue.act))
    return Code.of("point_conv", [_kernel(shape)], [finish, tiles])


def _name(shape: Shape) -> str:
    """What the function of register tiles is called: everything that its text depends on."""
    return f"@point_tile.{shape.vectors.lanes}.{shape.rows}.{shape.columns}{shape.epilogue.marks}"


def tile_text(shape: Shape, columns: int) -> Written:
    """The function of a register tile: some filters by some vectors of places, summed over some channels and added to
    what is there, or to the bias and the residual."""
    t = BlockText(shape.vectors.lanes)
    spots = [(i, j) for i in range(shape.rows) for j in range(columns)]
    t.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    # Where results go nobody was for long.
    for i in range(shape.rows):
        row = t.at("%y", t.times("%pitch", i))
        for j in range(columns):
            t.fetch_to_write(t.at(row, 4 * t.lanes * j))
        if shape.epilogue.residual:
            row = t.at("%from", t.times("%from_pitch", i))
            for j in range(columns):
                t(f"call void @llvm.prefetch.p0(ptr {t.at(row, 4 * t.lanes * j)}, i32 0, i32 3, i32 1)")
    t("br label %channel")
    t.label("channel")
    t("%c = phi i64 [ 0, %entry ], [ %c.next, %channel ]")
    t("%w.here = phi ptr [ %w, %entry ], [ %w.next, %channel ]")
    t("%x.here = phi ptr [ %x, %entry ], [ %x.next, %channel ]")
    at = len(t.lines)
    seen = [t.load(t.at("%x.here", 4 * t.lanes * j)) for j in range(columns)]
    sums: dict[tuple[int, int], str] = {}
    # What the next band sees lies far apart: nobody else asks for it ahead.
    after = t.at("%x.here", "%ahead")
    for j in range(columns):
        t(f"call void @llvm.prefetch.p0(ptr {t.at(after, 4 * t.lanes * j)}, i32 0, i32 2, i32 1)")
    for i in range(shape.rows):
        weight = t.spread_from(t.at("%w.here", 4 * i))
        for j in range(columns):
            sums[i, j] = t.fma(weight, seen[j], f"%sum{i}.{j}")
    t.lines[at:at] = [f"  %sum{i}.{j} = phi {t.kind} [ zeroinitializer, %entry ], [ {sums[i, j]}, %channel ]"
                      for i, j in spots]  # fmt: skip
    t(f"%w.next = getelementptr i8, ptr %w.here, i64 {4 * shape.rows}")
    t("%x.next = getelementptr i8, ptr %x.here, i64 %plane")
    t("%c.next = add nuw nsw i64 %c, 1")
    t("%c.more = icmp slt i64 %c.next, %channels")
    t("br i1 %c.more, label %channel, label %end")
    t.label("end")
    for i in range(shape.rows):
        row = t.at("%y", t.times("%pitch", i))
        start = t.spread_from(t.at("%bias", 4 * i)) if shape.epilogue.bias else "zeroinitializer"
        if shape.epilogue.residual:
            start = t.let(f"select i1 %first, {t.kind} {start}, {t.kind} zeroinitializer")
        for j in range(columns):
            place = t.at(row, 4 * t.lanes * j)
            if shape.epilogue.residual:
                there = t.at(t.at("%from", t.times("%from_pitch", i)), 4 * t.lanes * j)
                before = t.add(t.load(there), start)
            else:
                before = t.let(f"select i1 %first, {t.kind} {start}, {t.kind} {t.load(place)}")
            total = t.add(before, sums[i, j])
            done = activated(t, shape.epilogue.in_registers, total)
            t.store(total if done == total else t.let(f"select i1 %last, {t.kind} {done}, {t.kind} {total}"), place)
    # What sums begin with is what was written before, or the residual.
    begin = ", ptr %from, i64 %from_pitch" if shape.epilogue.residual else ""
    header = (
        f"internal void {_name(shape)}.{columns}(ptr noalias readonly %w, ptr noalias readonly %x, i64 %plane, "
        f"i64 %channels, i64 %ahead, ptr {'' if begin else 'noalias '}%y, i64 %pitch, ptr noalias readonly %bias, "
        f"i1 %first, i1 %last{begin}) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _copy_row(t: BlockText, source: str, target: str, width: str, count: str) -> None:
    """So many vectors, zeros behind what there is."""
    with t.loop("0", width) as vector:
        by = t.times(vector, 4 * t.lanes)
        some = t.lanes_within(t.times(vector, t.lanes), count)
        t.store(t.load_where(some, t.at(source, by)), t.at(target, by))


def _kernel(shape: Shape) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(shape.vectors.lanes)
    lanes, rows = t.lanes, shape.rows
    wide = 4 * lanes * shape.columns
    epilogue = shape.epilogue
    t.unpack(epilogue.pointers, (*SIZES, *epilogue.sizes(("r_image",))))
    # Scratch holds the sums of a part of the filters at the last band, and what that band sees.
    sums = t.let(f"getelementptr i8, ptr %scratch, i64 {HEAD}")
    panel = t.at(sums, t.times("%filter_part", rows * wide))
    vectors = t.rounded_up("%places", lanes)
    bands = t.rounded_up(vectors, shape.columns)
    narrow, wider = t.quotient(vectors, bands), t.rest(vectors, bands)
    filter_tiles = t.rounded_up("%filters", rows)
    area = t.times("%places", 4)
    with t.loop("%begin", "%end") as tile:
        # Who goes on with the next tile has the weights of the last one still near.
        place_part, left = t.rest(tile, "%place_parts"), t.quotient(tile, "%place_parts")
        filter_part, image_group = t.rest(left, "%filter_parts"), t.quotient(left, "%filter_parts")
        group, image = t.rest(image_group, "%groups"), t.quotient(image_group, "%groups")
        source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(group, "%group_step"))
        first_tile = t.times(filter_part, "%filter_part")
        last_tile = t.least(filter_tiles, t.plus(first_tile, "%filter_part"))
        first_band = t.times(place_part, "%place_part")
        with t.loop(first_band, t.least(bands, t.plus(first_band, "%place_part"))) as band:
            width = t.plus(narrow, t.let(f"zext i1 {t.let(f'icmp slt i64 {band}, {wider}')} to i64"))
            start = t.times(t.plus(t.times(band, narrow), t.least(band, wider)), lanes)
            count = t.least(t.times(width, lanes), t.minus("%places", start))
            here = t.at(source, t.times(start, 4))
            ragged = t.let(f"icmp slt i64 {count}, {t.times(width, lanes)}")
            with t.when(ragged), t.loop("0", "%channels") as channel:
                of, onto = t.at(here, t.times(channel, "%channel_step")), t.at(panel, t.times(channel, wide))
                _copy_row(t, of, onto, width, count)
            x = t.let(f"select i1 {ragged}, ptr {panel}, ptr {here}")
            plane = t.chosen(ragged, wide, "%channel_step")
            with t.loop("0", t.rounded_up("%channels", "%depth")) as piece:
                before = t.times(piece, "%depth")
                some = t.least("%depth", t.minus("%channels", before))
                first = t.let(f"icmp eq i64 {piece}, 0")
                last = t.let(f"icmp eq i64 {t.plus(before, some)}, %channels")
                there = t.at(x, t.times(before, plane))
                with t.loop(first_tile, last_tile) as filter_tile:
                    filter = t.times(filter_tile, rows)
                    own = t.least(rows, t.minus("%filters", filter))
                    through = t.let(f"or i1 {ragged}, {t.let(f'icmp slt i64 {own}, {rows}')}")
                    channel = t.plus(t.times(image_group, "%filters"), filter)
                    target = t.at("%y", t.plus(t.times(channel, area), t.times(start, 4)))
                    spare = t.at(sums, t.times(t.minus(filter_tile, first_tile), rows * wide))
                    onto = t.let(f"select i1 {through}, ptr {spare}, ptr {target}")
                    step = t.chosen(through, wide, area)
                    packed = t.plus(t.times(group, filter_tiles), filter_tile)
                    weights = t.at("%w", t.times(t.plus(t.times(packed, "%channels"), before), 4 * rows))
                    bias = t.at("%b", t.times(packed, 4 * rows)) if epilogue.bias else "%w"
                    ahead = t.chosen(t.let(f"icmp eq i64 {filter_tile}, {first_tile}"), t.times(width, 4 * lanes), 0)
                    given = (
                        f"ptr {weights}, ptr {there}, i64 {plane}, i64 {some}, i64 {ahead}, ptr {onto}, i64 {step}, "
                        f"ptr {bias}, i1 {first}, i1 {last}"
                    )
                    if epilogue.residual:
                        own_place = t.plus(t.times(t.plus(t.times(group, "%filters"), filter), area), t.times(start, 4))
                        beside = t.at(t.at("%r", t.times(image, "%r_image")), own_place)
                        with t.when(t.let(f"and i1 {first}, {through}")), t.loop("0", own) as row:
                            by_row = t.at(beside, t.times(row, area)), t.at(spare, t.times(row, wide))
                            _copy_row(t, *by_row, width, count)
                        direct = t.let(f"xor i1 {through}, true")
                        begins = t.let(f"and i1 {first}, {direct}")
                        begin = t.let(f"select i1 {begins}, ptr {beside}, ptr {onto}")
                        given += f", ptr {begin}, i64 {t.chosen(begins, area, step)}"
                    t(f"call void {_name(shape)}({given}, i64 {width})")
                    if epilogue.finishes:
                        with t.when(last), t.loop("0", own) as row:
                            t(f"call void @kernel.finish(ptr {t.at(onto, t.times(row, step))}, i64 {count})")
                    with t.when(t.let(f"and i1 {last}, {through}")), t.loop("0", own) as row:
                        of, onto = t.at(spare, t.times(row, wide)), t.at(target, t.times(row, area))
                        with t.loop("0", width) as vector:
                            by = t.times(vector, 4 * lanes)
                            mask = t.lanes_within(t.times(vector, lanes), count)
                            t.store_where(mask, t.load(t.at(of, by)), t.at(onto, by))
    return t.function(KERNEL), tuple(t.used)

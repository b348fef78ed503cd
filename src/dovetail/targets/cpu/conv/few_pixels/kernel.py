"""Convolution over few places, as LLVM's text: filters in the lanes of vectors, so that no lane is left empty.

A tile is one block of filters at some places of one image. Each register tile has some vectors of filters and a few
places, wherever they lie: what a place sees is read number by number. Sums are kept in scratch from one piece of
the channels to the next, so that the weights of a piece stay in the first cache; at the end they are turned round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.codegen.llvm.module import Code, Written
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.epilogue import Epilogue, activated
from dovetail.targets.cpu.conv.patch import HEAD, KERNEL, WINDOW, BlockText, gather_name, gather_text, words

SIZES = (
    *WINDOW, "channels", "filters", "groups", "image_step", "group_step", "channel_step", "places", "parts", "part",
    "piece", "padded",
)  # fmt: skip
"""The sizes that the code is given, in their order. `parts` tiles of `part` places each share an image; a piece is some
channels; `padded` says whether there is anything around the image, which then has to be copied."""


@dataclass(frozen=True, slots=True)
class Square:
    """What the text depends on: vectors, how many of them hold filters, places of a register tile, the rest."""

    vectors: CpuDevice
    filters: int
    places: int
    epilogue: Epilogue
    point: bool
    """Whether the window has one tap."""

    @property
    def block(self) -> int:
        """Filters of a tile."""
        return self.filters * self.vectors.lanes


def forms_of(vectors: CpuDevice) -> tuple[tuple[int, int], ...]:
    """Register tiles: vectors of filters, and places."""
    return ((4, 6), (2, 10)) if vectors.registers > 16 else ((2, 6), (2, 5), (2, 4))


def least_waste(vectors: CpuDevice, places: int) -> tuple[int, int]:
    """The register tile that wastes least at so many places."""
    return min(forms_of(vectors), key=lambda form: -(-places // form[1]) * form[1])


def small_text(square: Square) -> Code:
    """The kernel."""
    shared = [turn_text(square), gather_text(square.vectors), square_text(square)]
    return Code.of("small_conv", [_kernel(square)], shared)


def square_name(square: Square) -> str:
    """What the function of a register tile is called: everything that its text depends on."""
    return f"@small_tile.{square.vectors.lanes}.{square.filters}.{square.places}{'.point' if square.point else ''}"


def square_text(square: Square) -> Written:
    """The register tile: adds a piece of the channels to sums that lie at `sums`, or to nothing."""
    t = BlockText(square.vectors.lanes)
    wide = 4 * t.lanes
    spots = [(i, j) for j in range(square.places) for i in range(square.filters)]
    places = [t.let(f"load i64, ptr {t.at('%where', 8 * j)}, align 8") for j in range(square.places)]
    t("br label %channel")
    t.label("channel")
    end = "channel" if square.point else "channel.end"
    t(f"%c = phi i64 [ 0, %entry ], [ %c.next, %{end} ]")
    t(f"%w.outer = phi ptr [ %w, %entry ], [ %w.next, %{end} ]")
    t(f"%x.outer = phi ptr [ %x, %entry ], [ %x.next, %{end} ]")
    at = len(t.lines)
    if square.point:
        sums = _summed(t, square, "%x.outer", "%w.outer", places, "%outer")
    else:
        t("br label %tap")
        t.label("tap")
        t("%k = phi i64 [ 0, %channel ], [ %k.next, %tap ]")
        t("%w.here = phi ptr [ %w.outer, %channel ], [ %w.next, %tap ]")
        middle = len(t.lines)
        offset = t.let(f"load i64, ptr {t.let('getelementptr i64, ptr %offsets, i64 %k')}, align 8")
        sums = _summed(t, square, t.at("%x.outer", offset), "%w.here", places, "%inner")
        t("%k.next = add nuw nsw i64 %k, 1")
        t("%k.more = icmp slt i64 %k.next, %taps")
        t("br i1 %k.more, label %tap, label %channel.end")
        t.label("channel.end")
        t.lines[middle:middle] = [
            f"  %inner{i}.{j} = phi {t.kind} [ %outer{i}.{j}, %channel ], [ {sums[i, j]}, %tap ]" for i, j in spots
        ]
    t("%x.next = getelementptr i8, ptr %x.outer, i64 %plane")
    t("%c.next = add nuw nsw i64 %c, 1")
    t("%c.more = icmp slt i64 %c.next, %channels")
    t("br i1 %c.more, label %channel, label %end")
    t.label("end")
    t.lines[at:at] = [
        f"  %outer{i}.{j} = phi {t.kind} [ zeroinitializer, %entry ], [ {sums[i, j]}, %{end} ]" for i, j in spots
    ]
    for i, j in spots:
        # A piece is summed by itself and then added: two short sums round less than a long one.
        place = t.at("%sums", (j * square.filters + i) * wide)
        both = t.let(f"fadd {t.kind} {t.load(place)}, {sums[i, j]}")
        t.store(t.let(f"select i1 %first, {t.kind} {sums[i, j]}, {t.kind} {both}"), place)
    header = (
        f"void {square_name(square)}(ptr noalias readonly %w, ptr noalias readonly %x, i64 %plane, "
        "ptr noalias readonly %offsets, i64 %taps, i64 %channels, ptr noalias readonly %where, ptr noalias %sums, "
        "i1 %first) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _summed(
    t: BlockText, square: Square, x: str, w: str, places: Sequence[str], before: str
) -> dict[tuple[int, int], str]:
    """The sums with one tap of one channel more."""
    wide = 4 * t.lanes
    weights = [t.load(t.at(w, wide * i)) for i in range(square.filters)]
    found: dict[tuple[int, int], str] = {}
    for j, place in enumerate(places):
        seen = t.spread_from(t.at(x, place))
        for i in range(square.filters):
            found[i, j] = t.fma(weights[i], seen, f"{before}{i}.{j}")
    t(f"%w.next = getelementptr i8, ptr {w}, i64 {wide * square.filters}")
    return found


def turn_text(square: Square) -> Written:
    """Sums [place][filter] of one vector of filters as results [filter][place], with bias, residual and activation;
    places lie so many bytes apart."""
    t = BlockText(square.vectors.lanes)
    lanes, epilogue = t.lanes, square.epilogue
    bias = t.load("%bias") if epilogue.bias else ""
    with t.steps("0", "%places", lanes) as place:
        rows: list[str] = []
        for i in range(lanes):
            # Behind the last place the last one is read again; what is made of it is not stored.
            number = t.least(t.plus(place, i), t.minus("%places", 1))
            x = t.load(t.at("%sums", t.times(number, "%apart")))
            before = epilogue.before_residual
            rows.append(activated(t, before.act, t.add(x, bias) if before.bias else x))
        mask = t.lanes_within(place, "%places")
        for i, x in enumerate(t.transposed(rows)):
            with t.when(t.let(f"icmp slt i64 {i}, %filters")):
                by = t.plus(t.times("%step", i), t.times(place, 4))
                if epilogue.residual:
                    x = activated(t, epilogue.act, t.add(x, t.load_where(mask, t.at("%r", by))))
                t.store_where(mask, x, t.at("%y", by))
    # Results may take the memory of the residual.
    header = (
        "void @kernel.turn(ptr noalias readonly %sums, ptr noalias readonly %bias, ptr %r, ptr %y, i64 %step, "
        "i64 %filters, i64 %places, i64 %apart) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


@dataclass(frozen=True, slots=True)
class Turned:
    """Whose results are turned round, as names of whole numbers: the image, the group, the block of filters among all,
    its first filter, the first place and how many places there are."""

    image: str
    group: str
    packed: str
    first_filter: str
    start: str
    count: str


def write_turned(t: BlockText, square: Square, of: Turned, sums: str, results: str) -> None:
    """Instructions that turn the sums of a block of filters round, a vector of filters at a time, and finish them."""
    lanes, area = t.lanes, t.times("%places", 4)
    with t.loop("0", str(square.filters)) as vector:
        first = t.plus(of.first_filter, t.times(vector, lanes))
        own = t.least(lanes, t.minus("%filters", first))
        with t.when(t.let(f"icmp sgt i64 {own}, 0")):
            bias = "%w"
            if square.epilogue.bias:
                bias = t.at("%b", t.times(t.plus(t.times(of.packed, square.block), t.times(vector, lanes)), 4))
            target = t.at(results, t.times(t.times(vector, lanes), area))
            here = t.at(sums, t.times(vector, 4 * lanes))
            beside = "%w"
            if square.epilogue.residual:
                within = t.plus(t.times(t.plus(t.times(of.group, "%filters"), first), area), t.times(of.start, 4))
                beside = t.at(t.at("%r", t.times(of.image, "%r_image")), within)
            given = f"ptr {here}, ptr {bias}, ptr {beside}, ptr {target}, i64 {area}, i64 {own}, i64 {of.count}"
            t(f"call void @kernel.turn({given}, i64 {4 * square.block})")


def _kernel(square: Square) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(square.vectors.lanes)
    lanes, block = t.lanes, square.block
    t.unpack(square.epilogue.pointers, (*SIZES, *square.epilogue.sizes(("r_image",))))
    t(f"%room = getelementptr i8, ptr %scratch, i64 {HEAD}")
    # Scratch holds offsets of taps, of places, sums, and what is seen if it has to be copied.
    padded = t.let("icmp ne i64 %padded, 0")
    reach_rows, reach_columns = (
        t.plus(t.times(t.minus(f"%out_{size}", 1), f"%stride_{axis}"),
               t.plus(t.times(t.minus(f"%window_{axis}", 1), f"%dilation_{axis}"), 1))
        for size, axis in (("height", "rows"), ("width", "columns"))
    )  # fmt: skip
    copied = t.times(t.times(reach_rows, reach_columns), 4)
    taps = t.times("%window_rows", "%window_columns")
    where = t.at("%room", t.times(t.rounded_up(taps, 8), 64))
    together = t.plus(t.times(t.rounded_up("%part", square.places), square.places), 8)
    sums = t.at(where, t.times(t.rounded_up(together, 8), 64))
    copy = t.at(sums, t.times(together, 4 * block))
    row_step, column_step = (
        t.chosen(padded, t.times(reach_columns, 4), "%row_step"),
        t.chosen(padded, 4, "%column_step"),
    )
    plane = t.chosen(padded, copied, "%channel_step")
    with t.loop("0", "%window_rows") as i, t.loop("0", "%window_columns") as j:
        down = t.times(t.times(i, "%dilation_rows"), row_step)
        offset = t.plus(down, t.times(t.times(j, "%dilation_columns"), column_step))
        number = t.plus(t.times(i, "%window_columns"), j)
        t(f"store i64 {offset}, ptr {t.let(f'getelementptr i64, ptr %room, i64 {number}')}, align 8")
    blocks = t.rounded_up("%filters", block)
    with t.loop("%begin", "%end") as tile:
        # Who has the same places all the way through a network finds what it reads in its own cache.
        filter_block, left = t.rest(tile, blocks), t.quotient(tile, blocks)
        part, image_group = t.rest(left, "%parts"), t.quotient(left, "%parts")
        group, image = t.rest(image_group, "%groups"), t.quotient(image_group, "%groups")
        source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(group, "%group_step"))
        fresh = t.let(f"icmp ne i64 {image_group}, {t.let('load i64, ptr %scratch, align 8')}")
        t(f"store i64 {image_group}, ptr %scratch, align 8")
        with t.when(t.let(f"and i1 {fresh}, {padded}")), t.loop("0", "%channels") as channel:
            onto, of = t.at(copy, t.times(channel, copied)), t.at(source, t.times(channel, "%channel_step"))
            given = [
                "%height", "%width", "%row_step", "%column_step", "%column_step", 1, 1,
                t.minus(0, "%above"), t.minus(0, "%before"), reach_rows, reach_columns, t.times(reach_columns, 4),
            ]  # fmt: skip
            t(f"call void {gather_name(lanes)}(ptr {of}, ptr {onto}, {words(given)})")
        seen = t.let(f"select i1 {padded}, ptr {copy}, ptr {source}")
        start = t.times(part, "%part")
        count = t.least("%part", t.minus("%places", start))
        tiles = t.rounded_up(count, square.places)
        listed = t.at("%scratch", 8)
        other = t.let(f"icmp ne i64 {part}, {t.let(f'load i64, ptr {listed}, align 8')}")
        t(f"store i64 {part}, ptr {listed}, align 8")
        with t.when(other), t.loop("0", t.times(tiles, square.places)) as number:
            # Behind the last place the last one is computed again.
            place = t.plus(start, t.least(number, t.minus(count, 1)))
            down = t.times(t.times(t.quotient(place, "%out_width"), "%stride_rows"), row_step)
            offset = t.plus(down, t.times(t.times(t.rest(place, "%out_width"), "%stride_columns"), column_step))
            t(f"store i64 {offset}, ptr {t.let(f'getelementptr i64, ptr {where}, i64 {number}')}, align 8")
        packed = t.plus(t.times(group, blocks), filter_block)
        area, first_filter = t.times("%places", 4), t.times(filter_block, block)
        own_channel = t.plus(t.times(image_group, "%filters"), first_filter)
        results = t.at("%y", t.plus(t.times(own_channel, area), t.times(start, 4)))
        weights = t.at("%w", t.times(t.times(packed, t.times("%channels", taps)), 4 * block))
        with t.loop("0", t.rounded_up("%channels", "%piece")) as piece:
            first = t.times(piece, "%piece")
            some = t.least("%piece", t.minus("%channels", first))
            w = t.at(weights, t.times(t.times(first, taps), 4 * block))
            size = t.times(t.times("%piece", taps), 4 * block)
            x = t.at(seen, t.times(first, plane))
            is_first = t.let(f"icmp eq i64 {piece}, 0")
            is_last = t.let(f"icmp eq i64 {t.plus(first, some)}, %channels")
            with t.loop("0", tiles) as number:
                begin = t.times(number, square.places)
                there = t.let(f"getelementptr i64, ptr {where}, i64 {begin}")
                onto = t.at(sums, t.times(begin, 4 * block))
                t.fetch(t.at(w, size), size, number, tiles)
                # Where results go nobody was for long.
                with t.when(is_last), t.loop("0", t.least(block, t.minus("%filters", first_filter))) as one:
                    t.fetch_to_write(t.at(results, t.plus(t.times(one, area), t.times(begin, 4))))
                given = f"ptr {w}, ptr {x}, i64 {plane}, ptr %room, i64 {taps}, i64 {some}, ptr {there}, ptr {onto}"
                t(f"call void {square_name(square)}({given}, i1 {is_first})")
        write_turned(t, square, Turned(image, group, packed, first_filter, start, count), sums, results)
    return t.function(KERNEL), tuple(t.used)

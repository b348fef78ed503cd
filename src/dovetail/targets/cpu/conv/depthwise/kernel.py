"""Convolution of each channel by a filter of its own, as LLVM's text: the window's taps are written out.

A tile is some channels of a band of rows of one image. What the band sees is laid out for a few channels at a time,
with zeros around it, even and odd columns apart where the window steps by two. A register tile has one vector of
columns of several rows: whatever it reads serves all the rows that see it, and the sums go straight to their places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.codegen.llvm.module import Code, Written
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.epilogue import Epilogue, activated, finish_text
from dovetail.targets.cpu.conv.patch import HEAD, KERNEL, BlockText, words

SIZES = (
    "height", "width", "row_step", "out_height", "out_width", "above", "before", "channels", "image_step",
    "channel_step", "parts", "part", "bands", "band", "together", "vectors",
)  # fmt: skip
"""The sizes that the code is given, in their order. Steps are bytes; `parts` tiles of `part` channels each share an
image, and `bands` of `band` rows each share a channel; `together` channels are laid out at a time, each row in
`vectors` of one phase of columns."""
Spot = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Depth:
    """What the text depends on: vectors, the window, rows of register tiles, what is done to a result."""

    vectors: CpuDevice
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    heights: tuple[int, ...]
    """Rows that a register tile may have."""
    epilogue: Epilogue

    @property
    def wide(self) -> int:
        """CpuDevice of columns beside each other in a register tile, where there are as many."""
        return 4 if self.window[0] == 1 else 1

    @property
    def reach(self) -> int:
        """From the first row that a result sees to the last."""
        return (self.window[0] - 1) * self.dilations[0]

    @property
    def in_registers(self) -> Epilogue:
        """What register tiles do themselves."""
        return Epilogue(self.epilogue.in_registers, self.epilogue.bias, self.epilogue.residual)


def depth_text(depth: Depth) -> Code:
    """The kernel."""
    widths = dict.fromkeys((1, depth.wide))
    tiles = [tile_text(depth, rows, wide) for rows in depth.heights for wide in widths]
    lays = [_lay_text(depth, narrow) for narrow in (True, False)]
    finish = finish_text(depth.vectors.lanes, Epilogue(depth.epilogue.act))
    return Code.of("depth_conv", [_kernel(depth)], [finish, *lays, *tiles])


def tile_name(depth: Depth, rows: int, wide: int) -> str:
    """What the function of a register tile is called: everything that its text depends on."""
    shape = [depth.vectors.lanes, *depth.window, *depth.strides, *depth.dilations, rows, wide]
    return f"@depth_tile.{'.'.join(map(str, shape))}{depth.in_registers.marks}"


def tile_text(depth: Depth, rows: int, wide: int) -> Written:
    """The function of a register tile, written out: its sums need no loop."""
    t = BlockText(depth.vectors.lanes)
    start = t.spread_from("%b") if depth.epilogue.bias else "zeroinitializer"
    for row in range(rows if wide == 1 else 0):
        # Where the rows below go nobody was for long.
        t.fetch_to_write(t.at("%y", t.times("%step", rows + row)))
    sums = _summed(t, depth, {(row, i): start for row in range(rows) for i in range(wide)})
    whole = t.let(f"icmp sge i64 %count, {t.lanes * wide}")
    with t.when(whole):
        _store(t, depth, sums, "")
    if wide == 1:
        with t.otherwise(whole):
            _store(t, depth, sums, t.lanes_within("0", "%count"))
    header = (
        f"void {tile_name(depth, rows, wide)}(ptr noalias readonly %x, i64 %pitch, i64 %phase, "
        "ptr noalias readonly %w, ptr noalias %y, i64 %step, i64 %count, ptr noalias readonly %b, "
        "ptr noalias readonly %r) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _summed(t: BlockText, depth: Depth, sums: dict[Spot, str]) -> dict[Spot, str]:
    """The sums, one column of the window after the other: its weights are loaded once for all rows."""
    (down, across), stride = depth.window, depth.strides[1]
    seeing: dict[int, list[tuple[int, int]]] = {}
    for row in sorted({row for row, _ in sums}):
        for i in range(down):
            seeing.setdefault(row * depth.strides[0] + i * depth.dilations[0], []).append((row, i))
    multiples: dict[int, str] = {}
    other = t.at("%x", "%phase") if stride > 1 else ""
    for j in range(across):
        at = j * depth.dilations[1]
        column = t.at(other if at % stride else "%x", 4 * (at // stride))
        weights = [t.spread_from(t.at("%w", 4 * (i * across + j))) for i in range(down)]
        for line, users in sorted(seeing.items()):
            here = _line(t, column, line, multiples)
            for wide in sorted({wide for _, wide in sums}):
                seen = t.load(t.at(here, 4 * t.lanes * wide))
                for row, i in users:
                    sums[row, wide] = t.fma(seen, weights[i], sums[row, wide])
    return sums


def _line(t: BlockText, column: str, line: int, multiples: dict[int, str]) -> str:
    """Where a line lies: an odd multiple of the pitch, shifted as addresses can be, so that few registers hold all."""
    if line == 0:
        return column
    shift = min(3, (line & -line).bit_length() - 1)
    odd = line >> shift
    if odd not in multiples:
        multiples[odd] = t.times("%pitch", odd)
    return t.at(column, t.whole_number("shl", multiples[odd], shift) if shift else multiples[odd])


def _store(t: BlockText, depth: Depth, sums: Mapping[Spot, str], mask: str) -> None:
    """Instructions that put sums to their places."""
    epilogue = depth.in_registers
    for (row, wide), x in sums.items():
        by = t.plus(t.times("%step", row), 4 * t.lanes * wide)
        if epilogue.residual:
            beside = t.at("%r", by)
            x = t.add(x, t.load_where(mask, beside) if mask else t.load(beside))
        x = activated(t, epilogue.act, x)
        if mask:
            t.store_where(mask, x, t.at("%y", by))
        else:
            t.store(x, t.at("%y", by))


def _lay_name(depth: Depth, narrow: bool) -> str:
    return f"@depth_lay.{depth.vectors.lanes}.{depth.strides[1]}{'.narrow' if narrow else ''}"


def _lay_text(depth: Depth, narrow: bool) -> Written:
    """The function that lays out what a band sees of some channels: of narrow ones a row is one vector."""
    t = BlockText(depth.vectors.lanes)
    if narrow:
        _lay_narrow(t, depth.strides[1])
    else:
        _lay_wide(t, depth.strides[1])
    names = "channels channel_step height width row_step first_row first_column rows vectors pitch phase plane"
    header = (
        f"void {_lay_name(depth, narrow)}(ptr noalias readonly %x, ptr noalias %s, "
        f"{', '.join(f'i64 %{n}' for n in names.split())}) noinline nounwind optsize"
    )
    return t.function(header), tuple(t.used)


def _lay_narrow(t: BlockText, stride: int) -> None:
    """Instructions without a branch for a row: nothing is read of those that are not in the image."""
    masks = [t.lanes_within(t.plus("%first_column", i * t.lanes), "%width") for i in range(stride)]
    corner = t.plus(t.times("%first_row", "%row_step"), t.times("%first_column", 4))
    with t.loop("0", "%channels") as channel:
        source = t.at(t.at("%x", t.times(channel, "%channel_step")), corner)
        onto = t.at("%s", t.times(channel, "%plane"))
        with t.loop("0", "%rows") as row:
            inside = t.let(f"icmp ult i64 {t.plus('%first_row', row)}, %height")
            line, parts = t.at(source, t.times(row, "%row_step")), list[str]()
            for i, mask in enumerate(masks):
                some = t.let(f"select i1 {inside}, {t.truth} {mask}, {t.truth} zeroinitializer")
                parts.append(t.load_where(some, t.at(line, 4 * t.lanes * i)))
            _put(t, t.at(onto, t.times(row, "%pitch")), _phases(t, parts))


def _lay_wide(t: BlockText, stride: int) -> None:
    """Instructions for rows of several vectors: most of them are copied whole."""
    wide = stride * t.lanes
    top = t.least("%rows", t.most(0, t.minus(0, "%first_row")))
    bottom = t.most(top, t.least("%rows", t.minus("%height", "%first_row")))
    # CpuDevice that begin before a row of the image, and those that do not end behind it.
    lead = t.least("%vectors", t.rounded_up(t.most(0, t.minus(0, "%first_column")), wide))
    inside = t.quotient(t.most(0, t.minus("%width", "%first_column")), wide)
    tail = t.most(lead, t.least("%vectors", inside))
    with t.loop("0", "%channels") as channel:
        source = t.at(t.at("%x", t.times(channel, "%channel_step")), t.times("%first_column", 4))
        source = t.at(source, t.times("%first_row", "%row_step"))
        onto = t.at("%s", t.times(channel, "%plane"))
        for begin, end in (("0", top), (bottom, "%rows")):
            with t.loop(begin, end) as row, t.loop("0", "%vectors") as vector:
                here = t.at(t.at(onto, t.times(row, "%pitch")), t.times(vector, 4 * t.lanes))
                _put(t, here, ["zeroinitializer"] * stride)
        with t.loop(top, bottom) as row:
            line, target = t.at(source, t.times(row, "%row_step")), t.at(onto, t.times(row, "%pitch"))
            for begin, end, masked in (("0", lead, True), (lead, tail, False), (tail, "%vectors", True)):
                with t.loop(begin, end) as vector:
                    _lay_vector(t, stride, line, target, vector, masked)


def _lay_vector(t: BlockText, stride: int, line: str, target: str, vector: str, masked: bool) -> None:
    """Instructions that lay out one vector of a row."""
    here, parts = t.at(line, t.times(vector, 4 * t.lanes * stride)), list[str]()
    for i in range(stride):
        first = t.plus("%first_column", t.plus(t.times(vector, stride * t.lanes), i * t.lanes))
        place = t.at(here, 4 * t.lanes * i)
        parts.append(t.load_where(t.lanes_within(first, "%width"), place) if masked else t.load(place))
    _put(t, t.at(target, t.times(vector, 4 * t.lanes)), _phases(t, parts))


def _put(t: BlockText, here: str, phases: list[str]) -> None:
    for i, x in enumerate(phases):
        t.store(x, t.at(here, t.times("%phase", i)) if i else here)


def _phases(t: BlockText, parts: list[str]) -> list[str]:
    """Neighbours as they are, or the even and the odd ones of two vectors."""
    if len(parts) == 1:
        return parts
    return [t.shuffle(parts[0], parts[1], range(i, 2 * t.lanes, 2)) for i in range(2)]


def _kernel(depth: Depth) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(depth.vectors.lanes)
    epilogue, lanes = depth.epilogue, t.lanes
    t.unpack(epilogue.pointers, (*SIZES, *epilogue.sizes(("r_image",))))
    seen = t.at("%scratch", HEAD)
    phase = t.times("%vectors", 4 * lanes)
    pitch = t.times(phase, depth.strides[1])
    most = t.plus(t.times(t.minus("%band", 1), depth.strides[0]), depth.reach + 1)
    plane, area = t.times(most, pitch), t.times(t.times("%out_height", "%out_width"), 4)
    line, single = t.times("%out_width", 4), t.let("icmp eq i64 %vectors, 1")
    with t.loop("%begin", "%end") as tile:
        band, left = t.rest(tile, "%bands"), t.quotient(tile, "%bands")
        part, image = t.rest(left, "%parts"), t.quotient(left, "%parts")
        first, first_row = t.times(part, "%part"), t.times(band, "%band")
        end = t.least("%channels", t.plus(first, "%part"))
        own_rows = t.least("%band", t.minus("%out_height", first_row))
        rows = t.plus(t.times(t.minus(own_rows, 1), depth.strides[0]), depth.reach + 1)
        source, corner = t.at("%x", t.times(image, "%image_step")), t.times(first_row, line)
        tiles = t.rounded_up(own_rows, max(depth.heights))
        shared = _Band(pitch, phase, line, tiles, t.quotient(own_rows, tiles), t.rest(own_rows, tiles))
        with t.loop("0", t.rounded_up(t.minus(end, first), "%together")) as number:
            begin = t.plus(first, t.times(number, "%together"))
            some = t.least("%together", t.minus(end, begin))
            given = [
                some, "%channel_step", "%height", "%width", "%row_step",
                t.minus(t.times(first_row, depth.strides[0]), "%above"), t.minus(0, "%before"), rows, "%vectors",
                pitch, phase, plane,
            ]  # fmt: skip
            here = t.at(source, t.times(begin, "%channel_step"))
            for narrow, holds in ((True, single), (False, t.let(f"xor i1 {single}, true"))):
                with t.when(holds):
                    t(f"call void {_lay_name(depth, narrow)}(ptr {here}, ptr {seen}, {words(given)})")
            with t.loop("0", some) as one:
                channel = t.plus(begin, one)
                own = t.plus(t.times(channel, area), corner)
                y = t.at(t.at("%y", t.times(t.times(image, "%channels"), area)), own)
                r = t.at(t.at("%r", t.times(image, "%r_image")), own) if epilogue.residual else "%w"
                _channel(t, depth, shared, channel, t.at(seen, t.times(one, plane)), y, r)
                if epilogue.finishes:
                    t(f"call void @kernel.finish(ptr {y}, i64 {t.times(own_rows, '%out_width')})")
    return t.function(KERNEL), tuple(t.used)


@dataclass(frozen=True, slots=True)
class _Band:
    """A band as it lies: names of whole numbers, bytes but for how rows are shared out to register tiles."""

    pitch: str
    phase: str
    line: str
    tiles: str
    low: str
    wider: str


def _channel(t: BlockText, depth: Depth, band: _Band, channel: str, seen: str, y: str, r: str) -> None:
    """Instructions for the register tiles of one channel of a band: rows are shared as equally as they can be."""
    w = t.at("%w", t.times(channel, 4 * depth.window[0] * depth.window[1]))
    b = t.at("%b", t.times(channel, 4)) if depth.epilogue.bias else "%w"
    with t.loop("0", band.tiles) as number:
        row = t.plus(t.times(number, band.low), t.least(number, band.wider))
        height = t.plus(band.low, t.let(f"zext i1 {t.let(f'icmp slt i64 {number}, {band.wider}')} to i64"))
        x, by = t.at(seen, t.times(t.times(row, depth.strides[0]), band.pitch)), t.times(row, band.line)
        with t.cases(height, depth.heights) as heights:
            for rows in heights:
                _across(t, depth, band, rows, (x, w, t.at(y, by), b, t.at(r, by)))


def _across(t: BlockText, depth: Depth, band: _Band, rows: int, places: tuple[str, str, str, str, str]) -> None:
    """Instructions for the register tiles of some rows, one after the other: the wide ones first."""
    x, w, y, b, r = places
    done = "0"
    for wide in dict.fromkeys((depth.wide, 1)):
        step = wide * t.lanes
        left = t.minus("%out_width", done)
        tiles = t.quotient(left, step) if wide > 1 else t.rounded_up(left, step)
        with t.loop("0", tiles) as tile:
            column = t.plus(done, t.times(tile, step))
            at, count = t.times(column, 4), t.minus("%out_width", column)
            t(
                f"call void {tile_name(depth, rows, wide)}(ptr {t.at(x, at)}, i64 {band.pitch}, i64 {band.phase}, "
                f"ptr {w}, ptr {t.at(y, at)}, i64 {band.line}, i64 {count}, ptr {b}, ptr {t.at(r, at)})"
            )
        done = t.times(tiles, step)

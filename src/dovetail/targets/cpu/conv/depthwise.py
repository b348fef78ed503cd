"""Depthwise convolution: each channel has a filter of its own, and the window's taps are unrolled.

A tile is some channels of a band of rows of one image. What the band sees is packed for a few channels at a time, with
zeros around it, even and odd columns apart where the window steps by two. A register tile has one vector of columns of
several rows: whatever it reads serves all the rows that see it, and the sums go straight to the result. No sum goes
over channels, so that it has nothing of the nests of other convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, NULL, Int, Mask, Ptr, Vec
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, WORDS, Arguments, KernelCode, assemble, kernel_function
from dovetail.codegen.llvm.vector import NO_LANES, ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.problems.geometry import ConvGeometry
from dovetail.kernels.spec import Tiling
from dovetail.targets.cpu.conv.candidate import LEVEL, Candidate, Candidates, ConvTiler, Effort
from dovetail.targets.cpu.conv.epilogue import (
    RowTarget,
    activate,
    arguments_of,
    finish_row,
    finish_signature,
    row_regions,
    writer_of,
)
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS

Spot = tuple[int, int]
"""An accumulator: its row, and its vector in the row."""


@dataclass(frozen=True, slots=True)
class DepthwiseTile:
    """What the code depends on: the device, the window, rows of register tiles, and what becomes of a sum."""

    device: CpuDevice
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    heights: tuple[int, ...]
    """Rows that a register tile may have."""
    epilogue: Epilogue

    @property
    def wide(self) -> int:
        """Vectors of columns of the wider register tile."""
        return 4 if self.window[0] == 1 else 1

    @property
    def reach(self) -> int:
        """From the first row that a result sees to the last."""
        return (self.window[0] - 1) * self.dilations[0]

    @property
    def in_registers(self) -> Epilogue:
        """What register tiles do themselves."""
        return Epilogue(self.epilogue.in_registers, self.epilogue.bias, self.epilogue.residual)


@dataclass(frozen=True, slots=True)
class DepthwiseArgs:
    """`parts` tiles of `part` channels each share an image, and `bands` of `band` rows each share a channel; `together`
    channels are packed at a time, each row in `vectors` of one phase of columns."""

    x: Ptr
    w: Ptr
    b: Ptr
    r: Ptr
    y: Ptr
    height: I64
    width: I64
    row_step: I64
    out_height: I64
    out_width: I64
    above: I64
    before: I64
    channels: I64
    image_step: I64
    channel_step: I64
    parts: I64
    part: I64
    bands: I64
    band: I64
    together: I64
    vectors: I64
    r_image: I64
    rows: Region
    seen: Region
    """What a band sees of a few channels."""


def arguments(epilogue: Epilogue) -> Arguments[DepthwiseArgs]:
    return arguments_of(DepthwiseArgs, epilogue, "r_image")


def depthwise_code(tile: DepthwiseTile) -> KernelCode:
    """The kernel."""
    widths = dict.fromkeys((1, tile.wide))
    tiles = [register_tile(tile, rows, wide) for rows in tile.heights for wide in widths]
    packs = [_pack_function(tile, narrow) for narrow in (True, False)]
    finish = finish_row(tile.device, Epilogue(tile.epilogue.steps))
    return assemble("depth_conv", [_kernel(tile)], [finish, *packs, *tiles])


# The register tile.


def _tile_signature(tile: DepthwiseTile, rows: int, wide: int) -> Signature:
    shape = [tile.device.lanes, *tile.window, *tile.strides, *tile.dilations, rows, wide]
    return Signature(
        f"depth_tile.{'.'.join(map(str, shape))}{tile.in_registers.marks}",
        (
            Parameter("ptr", "x", "noalias readonly"), Parameter("i64", "pitch"), Parameter("i64", "phase"),
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "y", "noalias"), Parameter("i64", "step"),
            Parameter("i64", "count"), Parameter("ptr", "b", "noalias readonly"),
            Parameter("ptr", "r", "noalias readonly"),
        ),
    )  # fmt: skip


def register_tile(tile: DepthwiseTile, rows: int, wide: int) -> Function:
    """Some rows by one vector, or a few, of columns; the taps are unrolled, so that its sums need no loop."""
    t = VectorBuilder(tile.device)
    start = t.load_splat(Ptr("%b")) if tile.epilogue.bias else ZERO
    for row in range(rows if wide == 1 else 0):
        # The lines of the next rows of results are cold.
        t.prefetch(t.ptr_add(Ptr("%y"), t.mul(I64("%step"), rows + row)), for_write=True)
    sums = _accumulate(t, tile, {(row, i): start for row in range(rows) for i in range(wide)})
    full = t.icmp("sge", I64("%count"), t.lanes * wide)
    with t.when(full):
        _store(t, tile, sums, None)
    if wide == 1:
        with t.unless(full):
            _store(t, tile, sums, t.lanes_within(0, I64("%count")))
    return t.function(_tile_signature(tile, rows, wide))


def _accumulate(t: VectorBuilder, tile: DepthwiseTile, sums: dict[Spot, Vec]) -> dict[Spot, Vec]:
    """The sums, one column of the window after the other: its weights are loaded once for all rows."""
    (down, across), stride = tile.window, tile.strides[1]
    users: dict[int, list[tuple[int, int]]] = {}
    for row in sorted({row for row, _ in sums}):
        for i in range(down):
            users.setdefault(row * tile.strides[0] + i * tile.dilations[0], []).append((row, i))
    multiples: dict[int, I64] = {}
    x = Ptr("%x")
    odd = t.ptr_add(x, I64("%phase")) if stride > 1 else x
    for j in range(across):
        at = j * tile.dilations[1]
        column = t.ptr_add(odd if at % stride else x, 4 * (at // stride))
        weights = [t.load_splat(t.ptr_add(Ptr("%w"), 4 * (i * across + j))) for i in range(down)]
        for line, rows in sorted(users.items()):
            here = _line(t, column, line, multiples)
            for wide in sorted({wide for _, wide in sums}):
                seen = t.load(t.ptr_add(here, t.bytes * wide))
                for row, i in rows:
                    sums[row, wide] = t.fma(seen, weights[i], sums[row, wide])
    return sums


def _line(t: VectorBuilder, column: Ptr, line: int, multiples: dict[int, I64]) -> Ptr:
    """A line of a column: an odd multiple of the pitch, shifted as addresses can be, so that few registers hold all."""
    if line == 0:
        return column
    shift = min(3, (line & -line).bit_length() - 1)
    odd = line >> shift
    if odd not in multiples:
        multiples[odd] = t.mul(I64("%pitch"), odd)
    return t.ptr_add(column, t.shl(multiples[odd], shift) if shift else multiples[odd])


def _store(t: VectorBuilder, tile: DepthwiseTile, sums: Mapping[Spot, Vec], mask: Mask | None) -> None:
    """Finish and store the sums; with a mask, its lanes only."""
    epilogue = tile.in_registers
    for (row, wide), x in sums.items():
        by = t.add(t.mul(I64("%step"), row), t.bytes * wide)
        if epilogue.residual:
            residual = t.ptr_add(Ptr("%r"), by)
            x = t.fadd(x, t.load(residual) if mask is None else t.load_masked(mask, residual))
        x = activate(t, epilogue.steps, x)
        if mask is None:
            t.store(x, t.ptr_add(Ptr("%y"), by))
        else:
            t.store_masked(mask, x, t.ptr_add(Ptr("%y"), by))


# Packing.


def _pack_signature(tile: DepthwiseTile, narrow: bool) -> Signature:
    names = "channels channel_step height width row_step first_row first_column rows vectors pitch phase plane"
    return Signature(
        f"depth_lay.{tile.device.lanes}.{tile.strides[1]}{'.narrow' if narrow else ''}",
        (
            Parameter("ptr", "x", "noalias readonly"),
            Parameter("ptr", "s", "noalias"),
            *[Parameter("i64", name) for name in names.split()],
        ),
    )


def _pack_function(tile: DepthwiseTile, narrow: bool) -> Function:
    """Pack what a band sees of some channels; where it is narrow, a row is one vector."""
    t = VectorBuilder(tile.device)
    if narrow:
        _pack_narrow(t, tile.strides[1])
    else:
        _pack_wide(t, tile.strides[1])
    return t.function(_pack_signature(tile, narrow), attributes="noinline nounwind optsize")


def _pack_narrow(t: VectorBuilder, stride: int) -> None:
    """Pack without a branch per row: nothing is read of rows outside the image."""
    first_row, first_column, row_step = I64("%first_row"), I64("%first_column"), I64("%row_step")
    masks = [t.lanes_within(t.add(first_column, i * t.lanes), I64("%width")) for i in range(stride)]
    corner = t.add(t.mul(first_row, row_step), t.mul(first_column, 4))
    with t.loop(0, I64("%channels")) as channel:
        source = t.ptr_add(t.ptr_add(Ptr("%x"), t.mul(channel, I64("%channel_step"))), corner)
        onto = t.ptr_add(Ptr("%s"), t.mul(channel, I64("%plane")))
        with t.loop(0, I64("%rows")) as row:
            inside = t.icmp("ult", t.add(first_row, row), I64("%height"))
            line = t.ptr_add(source, t.mul(row, row_step))
            parts: list[Vec] = []
            for i, mask in enumerate(masks):
                some = t.select_mask(inside, mask, NO_LANES)
                parts.append(t.load_masked(some, t.ptr_add(line, t.bytes * i)))
            _put(t, t.ptr_add(onto, t.mul(row, I64("%pitch"))), _phases(t, parts))


def _pack_wide(t: VectorBuilder, stride: int) -> None:
    """Pack rows of several vectors: most vectors are inside the image and need no mask."""
    wide = stride * t.lanes
    height, width, rows, vectors = I64("%height"), I64("%width"), I64("%rows"), I64("%vectors")
    first_row, first_column, row_step = I64("%first_row"), I64("%first_column"), I64("%row_step")
    top = t.smin(rows, t.smax(0, t.sub(0, first_row)))
    bottom = t.smax(top, t.smin(rows, t.sub(height, first_row)))
    # Vectors that begin before a row of the image, and those that do not end after it.
    lead = t.smin(vectors, t.ceil_div(t.smax(0, t.sub(0, first_column)), wide))
    inside = t.sdiv(t.smax(0, t.sub(width, first_column)), wide)
    tail = t.smax(lead, t.smin(vectors, inside))
    with t.loop(0, I64("%channels")) as channel:
        source = t.ptr_add(Ptr("%x"), t.mul(channel, I64("%channel_step")))
        source = t.ptr_add(t.ptr_add(source, t.mul(first_column, 4)), t.mul(first_row, row_step))
        onto = t.ptr_add(Ptr("%s"), t.mul(channel, I64("%plane")))
        outside: tuple[tuple[Int, Int], ...] = ((0, top), (bottom, rows))
        for begin, end in outside:
            with t.loop(begin, end) as row, t.loop(0, vectors) as vector:
                here = t.ptr_add(t.ptr_add(onto, t.mul(row, I64("%pitch"))), t.mul(vector, t.bytes))
                _put(t, here, [ZERO] * stride)
        with t.loop(top, bottom) as row:
            line, target = t.ptr_add(source, t.mul(row, row_step)), t.ptr_add(onto, t.mul(row, I64("%pitch")))
            parts: tuple[tuple[Int, Int, bool], ...] = ((0, lead, True), (lead, tail, False), (tail, vectors, True))
            for begin, end, masked in parts:
                with t.loop(begin, end) as vector:
                    _pack_vector(t, stride, line, target, vector, masked)


def _pack_vector(t: VectorBuilder, stride: int, line: Ptr, target: Ptr, vector: I64, masked: bool) -> None:
    """Pack one vector of a row."""
    here = t.ptr_add(line, t.mul(vector, t.bytes * stride))
    parts: list[Vec] = []
    for i in range(stride):
        first = t.add(I64("%first_column"), t.add(t.mul(vector, stride * t.lanes), i * t.lanes))
        spot = t.ptr_add(here, t.bytes * i)
        parts.append(t.load_masked(t.lanes_within(first, I64("%width")), spot) if masked else t.load(spot))
    _put(t, t.ptr_add(target, t.mul(vector, t.bytes)), _phases(t, parts))


def _put(t: VectorBuilder, here: Ptr, phases: Sequence[Vec]) -> None:
    for i, x in enumerate(phases):
        t.store(x, t.ptr_add(here, t.mul(I64("%phase"), i)))


def _phases(t: VectorBuilder, parts: Sequence[Vec]) -> list[Vec]:
    """Contiguous elements as they are, or the even and the odd ones of two vectors."""
    if len(parts) == 1:
        return list(parts)
    return [t.shuffle(parts[0], parts[1], range(i, 2 * t.lanes, 2)) for i in range(2)]


# The kernel.


@dataclass(frozen=True, slots=True)
class _Band:
    """A packed band: bytes of a row, of a phase, of a row of results, and how rows are shared out to register tiles."""

    pitch: I64
    phase: I64
    line: I64
    tiles: I64
    low: I64
    wider: I64


def _kernel(tile: DepthwiseTile) -> Function:
    """The tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    declared = arguments(tile.epilogue)
    a = declared.load(t, WORDS, SCRATCH)
    target = RowTarget.of(writer_of(t, declared, tile.epilogue, a.y), a.rows)
    phase = t.mul(a.vectors, t.bytes)
    pitch = t.mul(phase, tile.strides[1])
    most = t.add(t.mul(t.sub(a.band, 1), tile.strides[0]), tile.reach + 1)
    plane, area = t.mul(most, pitch), t.mul(t.mul(a.out_height, a.out_width), 4)
    line, single = t.mul(a.out_width, 4), t.icmp("eq", a.vectors, 1)
    with t.loop(BEGIN, END) as number:
        band_number, left = t.srem(number, a.bands), t.sdiv(number, a.bands)
        part, image = t.srem(left, a.parts), t.sdiv(left, a.parts)
        first, first_row = t.mul(part, a.part), t.mul(band_number, a.band)
        end = t.smin(a.channels, t.add(first, a.part))
        own_rows = t.smin(a.band, t.sub(a.out_height, first_row))
        rows = t.add(t.mul(t.sub(own_rows, 1), tile.strides[0]), tile.reach + 1)
        source, corner = t.ptr_add(a.x, t.mul(image, a.image_step)), t.mul(first_row, line)
        tiles = t.ceil_div(own_rows, max(tile.heights))
        band = _Band(pitch, phase, line, tiles, t.sdiv(own_rows, tiles), t.srem(own_rows, tiles))
        with t.loop(0, t.ceil_div(t.sub(end, first), a.together)) as some_number:
            begin = t.add(first, t.mul(some_number, a.together))
            some = t.smin(a.together, t.sub(end, begin))
            here = t.ptr_add(source, t.mul(begin, a.channel_step))
            _pack(t, tile, a, band, here, some, first_row, rows, plane, single)
            with t.loop(0, some) as one:
                channel = t.add(begin, one)
                own = t.add(t.mul(channel, area), corner)
                y: Ptr = t.ptr_add(t.ptr_add(a.y, t.mul(t.mul(image, a.channels), area)), own)
                y = y if target is None else a.rows
                r = t.ptr_add(t.ptr_add(a.r, t.mul(image, a.r_image)), own) if tile.epilogue.residual else NULL
                _channel(t, tile, a, band, channel, t.ptr_add(a.seen, t.mul(one, plane)), y, r)
                if tile.epilogue.finishes:
                    t.call(finish_signature(Epilogue(tile.epilogue.steps)), y, t.mul(own_rows, a.out_width))
                if target is not None:
                    place = (image, channel, t.mul(first_row, a.out_width))
                    target.write(t, 0, 1, t.mul(own_rows, a.out_width), place)
    return kernel_function(t)


def _pack(
    t: VectorBuilder,
    tile: DepthwiseTile,
    a: DepthwiseArgs,
    band: _Band,
    source: Ptr,
    channels: I64,
    first_row: I64,
    rows: I64,
    plane: I64,
    single: I1,
) -> None:
    """Pack what a band sees of some channels."""
    above = t.sub(t.mul(first_row, tile.strides[0]), a.above)
    before = t.sub(0, a.before)
    for narrow in (True, False):
        with t.when(single if narrow else t.not_(single)):
            t.call(
                _pack_signature(tile, narrow), source, a.seen, channels, a.channel_step, a.height, a.width,
                a.row_step, above, before, rows, a.vectors, band.pitch, band.phase, plane,
            )  # fmt: skip


def _channel(
    t: VectorBuilder, tile: DepthwiseTile, a: DepthwiseArgs, band: _Band, channel: I64, seen: Ptr, y: Ptr, r: Ptr
) -> None:
    """The register tiles of one channel of a band: rows are shared as equally as they can be."""
    w = t.ptr_add(a.w, t.mul(channel, 4 * tile.window[0] * tile.window[1]))
    b = t.ptr_add(a.b, t.mul(channel, 4)) if tile.epilogue.bias else NULL
    with t.loop(0, band.tiles) as number:
        row = t.add(t.mul(number, band.low), t.smin(number, band.wider))
        height = t.add(band.low, t.zext(t.icmp("slt", number, band.wider)))
        x = t.ptr_add(seen, t.mul(t.mul(row, tile.strides[0]), band.pitch))
        by = t.mul(row, band.line)
        target = t.ptr_add(y, by)
        residual = t.ptr_add(r, by) if tile.epilogue.residual else NULL
        with t.switch(height, tile.heights) as heights:
            for rows in heights:
                _across(t, tile, a, band, rows, x, w, target, b, residual)


def _across(
    t: VectorBuilder,
    tile: DepthwiseTile,
    a: DepthwiseArgs,
    band: _Band,
    rows: int,
    x: Ptr,
    w: Ptr,
    y: Ptr,
    b: Ptr,
    r: Ptr,
) -> None:
    """The register tiles of some rows, one after the other: the wide ones first."""
    done: Int = 0
    for wide in dict.fromkeys((tile.wide, 1)):
        step = wide * t.lanes
        left = t.sub(a.out_width, done)
        tiles = t.sdiv(left, step) if wide > 1 else t.ceil_div(left, step)
        with t.loop(0, tiles) as number:
            column = t.add(done, t.mul(number, step))
            at, count = t.mul(column, 4), t.sub(a.out_width, column)
            residual = t.ptr_add(r, at) if tile.epilogue.residual else NULL
            t.call(
                _tile_signature(tile, rows, wide), t.ptr_add(x, at), band.pitch, band.phase, w, t.ptr_add(y, at),
                band.line, count, b, residual,
            )  # fmt: skip
        done = t.mul(tiles, step)


def l1_bytes(device: CpuDevice) -> int:
    """Bytes of what is packed at a time: they stay in L1."""
    return device.caches.l1_room // 2


def depthwise(conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidates:
    """The kernel of a convolution whose groups have one channel and one filter each."""
    limits = LIMITS.depthwise
    if (problem.channels, problem.filters) != (1, 1):
        return Refused("groups_have_one_channel_and_filter", f"{problem.channels} and {problem.filters}")
    if not problem.is_level:
        return LEVEL
    # A channel times one number is one long row.
    problem = replace(problem, geometry=problem.geometry.flat())
    of = problem.geometry
    if of.taps > limits.most_taps:
        return Refused("window_can_be_unrolled", f"{of.taps} taps", f"at most {limits.most_taps}")
    if max(of.strides[0], *of.dilations) > limits.farthest or of.strides[1] > 2 or of.steps[1] != 4:
        return Refused("taps_are_near", f"strides {of.strides}, dilations {of.dilations}", f"{limits.farthest} rows")
    if rows_of(device, of.window[0], of.strides[0]) < 2:
        return Refused("registers_hold_the_window", f"{of.window[0]} rows")
    return [_candidate(conv, problem, device)]


def _candidate(conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidate:
    geometry = problem.geometry
    most = min(
        BLOCKS.depthwise.most_rows if geometry.is_known else BLOCKS.depthwise.few_rows,
        rows_of(device, geometry.window[0], geometry.strides[0]),
    )
    most = 1 if geometry.window[0] == 1 else most
    heights = _heights(Bands.of(geometry, device), most) if geometry.is_known else tuple(range(1, most + 1))
    tile = DepthwiseTile(device, geometry.window, geometry.strides, geometry.dilations, heights, conv.epilogue)
    return Candidate(packed(conv, 1), Depthwise(problem, tile), lambda: depthwise_code(tile), "depthwise")


def rows_of(device: CpuDevice, window: int, stride: int) -> int:
    """Rows that a register tile may have: next to their sums there are the weights of a column, and what is read, which
    comes from as many columns at once as there are phases."""
    return min(BLOCKS.depthwise.most_rows, device.registers - window * stride - 3)


@dataclass(frozen=True, slots=True)
class Bands:
    """Bands of rows of a channel: how many, rows of a band and of the last; vectors of a packed row, bytes of it."""

    count: int
    rows: int
    last: int
    vectors: int
    pitch: int

    @staticmethod
    def of(geometry: ConvGeometry, device: CpuDevice) -> Bands:
        """Bands that fit L1 if they have enough rows then, as equal as they can be."""
        height, width = known(geometry.out[0]), known(geometry.out[1])
        across = -(-(width + geometry.over[1]) // device.lanes)
        pitch = 4 * device.lanes * across * geometry.strides[1]
        fitting = (l1_bytes(device) // max(1, pitch) - geometry.reach[0] - 1) // geometry.strides[0] + 1
        rows = -(-height // max(1, -(-height // max(BLOCKS.depthwise.fewest_rows, fitting))))
        count = -(-height // max(1, rows))
        return Bands(count, rows, height - rows * (count - 1), across, pitch)

    def plane(self, geometry: ConvGeometry) -> int:
        """Bytes that a band sees of a channel."""
        return self.pitch * ((self.rows - 1) * geometry.strides[0] + geometry.reach[0] + 1)


def _heights(bands: Bands, most: int) -> tuple[int, ...]:
    """Rows of the register tiles that share what is in a band."""
    heights: set[int] = set()
    for rows in (bands.rows, bands.last):
        count = max(1, -(-rows // most))
        heights |= {max(1, rows // count), max(1, -(-rows // count))}
    return tuple(sorted(heights))


@dataclass(frozen=True, slots=True)
class Depthwise(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    tile: DepthwiseTile

    def declines(self, of: ConvProblem) -> Refused | None:
        """The condition that refuses sizes."""
        geometry, device, most = of.geometry, self.tile.device, LIMITS.depthwise.most_points
        if 0 in (*geometry.out, *geometry.sizes):
            return Refused("image_has_pixels", "0")
        if geometry.taps == 1 and (geometry.out[0] != 1 or known(geometry.out[1]) > most):
            return Refused("pixels_times_one_number_are_few", f"{geometry.out[1]}", f"at most {most}")
        plane, room = Bands.of(geometry, device).plane(geometry), device.caches.l2_room // 4
        return Refused("band_stays_in_l2", f"{plane} bytes", f"at most {room}") if plane > room else None

    def effort(self, of: ConvProblem) -> Effort:
        """What each image and channel costs."""
        height, width = known(of.geometry.out[0]), known(of.geometry.out[1])
        lanes, taps = self.tile.device.lanes, of.geometry.taps
        (rows, columns), vectors = of.geometry.sizes, height * -(-width // lanes)
        return Effort(vectors * taps, known(rows) * known(columns) / lanes, lanes)

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, device = of.geometry, self.tile.device
        bands = Bands.of(geometry, device)
        plane = bands.plane(geometry)
        # Packing a vector and storing one takes as long as a few products.
        work = bands.rows * -(-known(geometry.out[1]) // device.lanes) * (geometry.taps + 4 * geometry.strides[0])
        parts = -(-of.groups // max(1, min(of.groups, BLOCKS.depthwise.part_work // work)))
        part = -(-of.groups // parts)
        parts = -(-of.groups // part)
        together = max(1, min(part, l1_bytes(device) // plane))
        image, channel = of.steps
        laid = arguments(self.tile.epilogue).laid_out(
            {
                "height": geometry.sizes[0], "width": geometry.sizes[1], "row_step": geometry.steps[0],
                "out_height": geometry.out[0], "out_width": geometry.out[1], "above": geometry.before[0],
                "before": geometry.before[1], "channels": of.groups, "image_step": image, "channel_step": channel,
                "parts": parts, "part": part, "bands": bands.count, "band": bands.rows, "together": together,
                "vectors": bands.vectors, **dict(zip(("r_image",), of.residual, strict=False)), **dict(of.strides),
            },
            # What is read after the last row is not used.
            {
                "seen": together * plane + 4 * device.lanes * 8 + 4 * geometry.over[1],
                **row_regions(self.tile.epilogue, 4 * bands.rows * known(geometry.out[1])),
            },
        )  # fmt: skip
        return Tiling(laid.sizes, laid.scratch, of.images * parts * bands.count, work * part // 2 + 1)

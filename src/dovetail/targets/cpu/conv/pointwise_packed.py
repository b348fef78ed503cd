"""1×1 convolution on packed pixels, as a matrix product with filters in lanes.

A tile is a panel of filters at some pixels of one image. What the pixels see is packed once, as register tiles read it:
a few pixels side by side, channel by channel. While a panel's weights are multiplied, the next lines are prefetched,
one at a time; sums are transposed when a panel is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, NULL, Carried, Int, Mask, Ptr, Vec
from dovetail.codegen.llvm.kernel import (
    SCRATCH,
    Arguments,
    KernelCode,
    assemble,
    one_of,
)
from dovetail.codegen.llvm.once import once_for
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.spec import Tiling
from dovetail.targets.cpu.conv.candidate import LEVEL, Candidate, Candidates, ConvTiler, Effort, between, transposed
from dovetail.targets.cpu.conv.epilogue import RowTarget, activate, arguments_of, row_regions
from dovetail.targets.cpu.conv.filters_in_lanes import (
    Corner,
    FilterArgs,
    PixelSource,
    PixelSpan,
    RegisterTile,
    filled,
    filters_effort,
    filters_in_lanes,
    transpose_sums,
    write_finished,
    write_sums,
    write_transposed,
)
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.patches import WindowArgs
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS, shared_parts, tiles_of

# The micro-kernel goes through many channels at once, and prefetches as it goes: weights of the next panel, and the
# lines of its results. Nothing waits for them, so that the loop does little but multiply.


def forms_of(device: CpuDevice) -> tuple[tuple[int, int], ...]:
    """Register tiles: vectors of filters, and pixels; they count on FMAs with memory operands."""
    return tiles_of(device).packed


def micro_kernel_signature(tile: RegisterTile, lines: int) -> Signature:
    """The micro-kernel that prefetches `lines` lines of what is `next` in each iteration."""
    marks = replace(tile.epilogue, steps=()).marks
    return Signature(
        f"panel_tile.{tile.device.lanes}.{tile.filters}.{tile.pixels}.{lines}{marks}",
        (
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "x", "noalias readonly"),
            Parameter("i64", "channels"), Parameter("ptr", "bias", "noalias readonly"),
            Parameter("ptr", "sums", "noalias"), Parameter("i1", "first"), Parameter("ptr", "next"),
            Parameter("ptr", "y"), Parameter("ptr", "r"), Parameter("i64", "area"),
        ),
    )  # fmt: skip


def prefetched_rows(tile: RegisterTile) -> int:
    """Filters whose results a register tile prefetches: half of them where two tiles share a line."""
    return tile.block if 8 * tile.pixels > tile.device.caches.line else tile.block // 2


def micro_kernel(tile: RegisterTile, lines: int) -> Function:
    """Sums over some channels, [pixel][filter].

    The `first` of them begin with the bias and prefetch a line of results and of the residual, filter by filter; later
    ones are added to what is there.
    """
    t = _MicroKernel(tile, lines)
    channels, first = I64("%channels"), I1("%first")
    starts: list[Vec] = [ZERO] * tile.filters
    if tile.epilogue.bias:
        biases = [t.load(t.ptr_add(Ptr("%bias"), t.bytes * i)) for i in range(tile.filters)]
        starts = [t.select_vec(first, x, ZERO) for x in biases]
    whole = t.mul(t.sdiv(channels, BLOCKS.packed.unroll), BLOCKS.packed.unroll)
    early = t.select_int(first, t.smin(whole, BLOCKS.packed.unroll * prefetched_rows(tile)), 0)
    residual = [Ptr("%r")] if tile.epilogue.residual else []
    pointers = [Ptr("%w"), Ptr("%x"), Ptr("%next"), Ptr("%y"), *residual]
    pointers, sums = t.walk(0, early, BLOCKS.packed.unroll, pointers, starts * tile.pixels)
    pointers, sums = t.walk(early, whole, BLOCKS.packed.unroll, pointers[:3], sums)
    _, sums = t.walk(whole, channels, 1, pointers[:2], sums)
    write_sums(t, sums)
    return t.function(micro_kernel_signature(tile, lines))


class _MicroKernel(VectorBuilder):
    """Loops over channels."""

    def __init__(self, tile: RegisterTile, lines: int) -> None:
        super().__init__(tile.device)
        self.tile, self.prefetched = tile, lines

    def walk(
        self, first: Int, end: Int, steps: int, pointers: Sequence[Ptr], sums: Sequence[Vec]
    ) -> tuple[list[Ptr], list[Vec]]:
        """Go through channels, some in each iteration. Pointers are to weights, pixels, and lines to prefetch."""
        state = Carried(I64("0"), list(sums), list(pointers), [I64(str(first))])
        with self.guarded(self.icmp("slt", first, end), state), self.repeated(state):
            w, x, *ahead = state.pointers
            ahead = self._prefetch(ahead)
            wide, narrow = 4 * self.tile.block, 4 * self.tile.pixels
            held = state.vectors
            for step in range(steps):
                held = self._accumulate(
                    self.ptr_add(w, step * wide),
                    self.ptr_add(x, step * narrow),
                    held,
                    short=self._is_short(len(pointers)),
                )
            state.vectors[:] = held
            state.pointers[:] = [self.ptr_add(w, steps * wide), self.ptr_add(x, steps * narrow), *ahead]
            state.integers[0] = I64(self.let(f"add nuw nsw i64 {state.integers[0]}, {steps}"))
            state.again = self.icmp("slt", state.integers[0], end)
        return state.pointers, state.vectors

    def _prefetch(self, ahead: Sequence[Ptr]) -> list[Ptr]:
        """Prefetch lines; those of the next iteration."""
        following: list[Ptr] = []
        for pointer in ahead[:1]:
            for line in range(self.prefetched):
                self.prefetch(self.ptr_add(pointer, line * self.device.caches.line), level=2)
            following.append(self.ptr_add(pointer, self.prefetched * self.device.caches.line))
        for for_write, pointer in zip((True, False), ahead[1:], strict=False):
            self.prefetch(pointer, for_write=for_write)
            following.append(self.ptr_add(pointer, I64("%area")))
        return following

    def _is_short(self, pointers: int) -> bool:
        """Whether a loop has no registers left for weights of the next channel, which LLVM loads early.

        With two vectors of filters, one in memory is a load for each product: the loop that prefetches a residual too
        has it so.
        """
        left = self.tile.device.registers - self.tile.pixels * self.tile.filters
        return left <= self.tile.filters + (2 if self.tile.filters > 2 or pointers > 4 else 0)

    def _accumulate(self, w: Ptr, x: Ptr, sums: Sequence[Vec], *, short: bool) -> list[Vec]:
        """Add one channel. Where registers are short, the last weights are memory operands."""
        tile, filters = self.tile, self.tile.filters
        weights = [self.load(self.ptr_add(w, self.bytes * i)) for i in range(filters - short)]
        totals: list[Vec] = []
        for pixel in range(tile.pixels):
            seen = self.load_splat(self.ptr_add(x, 4 * pixel))
            own = sums[pixel * filters : (pixel + 1) * filters]
            totals += [self.fma(weight, seen, total) for weight, total in zip(weights, own, strict=False)]
            if short:
                totals.append(self.fma_memory(seen, self.ptr_add(w, self.bytes * (filters - 1)), own[-1]))
        return totals


# Packing.


CONTIGUOUS, SECOND, STRIDED = 0, 1, 2
"""How pixels are in memory: contiguous, every second one of a row, or anywhere."""
_X, _ONTO, _WHERE, _NEXT = Ptr("%x"), Ptr("%onto"), Ptr("%where"), Ptr("%next")
_STEP, _CHANNELS, _COUNT = I64("%channel_step"), I64("%channels"), I64("%count")


def tile_step(t: VectorBuilder, tile: RegisterTile, channels: I64) -> I64:
    """Bytes from what one register tile sees to the next: no power of two, so that they do not evict each other."""
    return t.add(t.mul(t.ceil_div(t.mul(channels, tile.pixels), 16), 64), BLOCKS.packed.apart)


def packed_bytes(tile: RegisterTile, channels: int) -> int:
    """The same, where channels are known."""
    return -(-channels * tile.pixels // 16) * 64 + BLOCKS.packed.apart


def pack_signature(tile: RegisterTile, form: str = "") -> Signature:
    """The function for one form, or the one that takes it as its last argument."""
    name = f"panel_pack.{tile.device.lanes}.{tile.pixels}"
    which = () if form else (Parameter("i64", "which"),)
    return Signature(
        f"{name}.{form}" if form else name,
        (
            Parameter("ptr", "x", "noalias readonly"), Parameter("ptr", "onto", "noalias"),
            Parameter("i64", "channel_step"), Parameter("i64", "channels"), Parameter("i64", "count"),
            Parameter("ptr", "where", "noalias readonly"), Parameter("ptr", "next"), *which,
        ),
    )  # fmt: skip


def pack_pixels(tile: RegisterTile) -> Function:
    """Pack what some pixels see, in one of the forms."""
    forms = {CONTIGUOUS: _contiguous(tile), SECOND: _second(tile), STRIDED: _strided(tile)}
    return one_of(pack_signature(tile).name, forms)


def _at_pixel(t: VectorBuilder, pixel: Int) -> Ptr:
    """Where a pixel sees the first channel."""
    return t.ptr_add(_X, t.load_i64(t.element(_WHERE, "i64", pixel)))


def _contiguous(tile: RegisterTile) -> Function:
    t = VectorBuilder(tile.device)
    size, step = 4 * tile.pixels, tile_step(t, tile, _CHANNELS)
    whole = t.sdiv(t.sdiv(_COUNT, tile.pixels), BLOCKS.packed.packed_together)
    with t.loop(0, whole) as number:
        first = t.mul(number, BLOCKS.packed.packed_together)
        source, target = _at_pixel(t, t.mul(first, tile.pixels)), t.ptr_add(_ONTO, t.mul(first, step))
        with t.loop(0, _CHANNELS) as channel:
            row, onto = t.ptr_add(source, t.mul(channel, _STEP)), t.ptr_add(target, t.mul(channel, size))
            _prefetch_row(t, row, BLOCKS.packed.packed_together * size)
            _prefetch_weights(t, number, channel, 2)
            for i in range(BLOCKS.packed.packed_together):
                _copy(t, tile.pixels, t.ptr_add(row, i * size), t.ptr_add(onto, t.mul(step, i)), None)
    with t.loop(t.mul(whole, BLOCKS.packed.packed_together), t.ceil_div(_COUNT, tile.pixels)) as number:
        begin = t.mul(number, tile.pixels)
        source, target = _at_pixel(t, begin), t.ptr_add(_ONTO, t.mul(number, step))
        left = t.sub(_COUNT, begin)
        masks = [t.lanes_within(first, left) for first in range(0, tile.pixels, t.lanes)]
        with t.loop(0, _CHANNELS) as channel:
            row, onto = t.ptr_add(source, t.mul(channel, _STEP)), t.ptr_add(target, t.mul(channel, size))
            _prefetch_row(t, row, size)
            _prefetch_weights(t, number, channel, 1)
            _copy(t, tile.pixels, row, onto, masks)
    return t.function(pack_signature(tile, "near"), linkage="internal")


def _second(tile: RegisterTile) -> Function:
    """Each register tile is in one row of pixels."""
    t = VectorBuilder(tile.device)
    lanes, size, step = t.lanes, 4 * tile.pixels, tile_step(t, tile, _CHANNELS)
    with t.loop(0, t.sdiv(_COUNT, tile.pixels)) as number:
        source, target = _at_pixel(t, t.mul(number, tile.pixels)), t.ptr_add(_ONTO, t.mul(number, step))
        with t.loop(0, _CHANNELS) as channel:
            row, onto = t.ptr_add(source, t.mul(channel, _STEP)), t.ptr_add(target, t.mul(channel, size))
            _prefetch_row(t, row, 2 * size - 4)
            _prefetch_weights(t, number, channel, 1)
            for first in range(0, tile.pixels, lanes):
                some = min(lanes, tile.pixels - first)
                counts = [min(lanes, 2 * some - 1), max(0, 2 * some - 1 - lanes)]
                low, high = (
                    t.load_masked(t.first_lanes(n), t.ptr_add(row, 4 * (2 * first + i * lanes))) if n else Vec("poison")
                    for i, n in enumerate(counts)
                )
                pixels = t.shuffle(low, high, range(0, 2 * lanes, 2))
                t.store_masked(t.first_lanes(some), pixels, t.ptr_add(onto, 4 * first))
    return t.function(pack_signature(tile, "second"), linkage="internal")


def _strided(tile: RegisterTile) -> Function:
    t = VectorBuilder(tile.device)
    size, step = 4 * tile.pixels, tile_step(t, tile, _CHANNELS)
    with t.loop(0, _COUNT) as pixel:
        source = _at_pixel(t, pixel)
        number, own = t.sdiv(pixel, tile.pixels), t.srem(pixel, tile.pixels)
        target = t.ptr_add(_ONTO, t.add(t.mul(number, step), t.mul(own, 4)))
        with t.loop(0, _CHANNELS) as channel:
            seen = t.load_f32(t.ptr_add(source, t.mul(channel, _STEP)))
            t.store_f32(seen, t.ptr_add(target, t.mul(channel, size)))
    return t.function(pack_signature(tile, "apart"), linkage="internal")


def _prefetch_row(t: VectorBuilder, row: Ptr, size: int) -> None:
    """Prefetch some bytes of a row some channels on."""
    ahead = t.ptr_add(row, t.mul(_STEP, BLOCKS.packed.ahead))
    for line in range(0, size, t.device.caches.line):
        t.prefetch(t.ptr_add(ahead, line))


def _prefetch_weights(t: VectorBuilder, number: I64, channel: I64, lines: int) -> None:
    """Prefetch some lines of the weights that come first."""
    at = t.ptr_add(_NEXT, t.mul(t.add(t.mul(number, _CHANNELS), channel), lines * t.device.caches.line))
    for line in range(lines):
        t.prefetch(t.ptr_add(at, line * t.device.caches.line), level=2)


def _copy(t: VectorBuilder, pixels: int, source: Ptr, target: Ptr, masks: Sequence[Mask] | None) -> None:
    """The pixels of a register tile, or those of masks and zeros."""
    for i, first in enumerate(range(0, pixels, t.lanes)):
        own = t.first_lanes(min(t.lanes, pixels - first))
        some = own if masks is None else t.mask_and(masks[i], own)
        t.store_masked(own, t.load_masked(some, t.ptr_add(source, 4 * first)), t.ptr_add(target, 4 * first))


# The kernel.


@dataclass(frozen=True, slots=True)
class PointwisePackedArgs(FilterArgs):
    """A part of pixels is some register tiles; pixels of a row are `column_step` bytes apart."""

    seen: Region
    """What the pixels see."""
    where: Region
    """Offsets of pixels."""


_ABSENT = {f.name for f in fields(WindowArgs)} - {"out_width", "row_step", "column_step"} | {"piece"}


def arguments(epilogue: Epilogue) -> Arguments[PointwisePackedArgs]:
    return arguments_of(PointwisePackedArgs, epilogue, "r_image", without=_ABSENT)


def pointwise_packed_code(tile: RegisterTile, lines: int) -> KernelCode:
    """The kernel; it prefetches `lines` lines of what is next in each iteration."""
    # Sums begin with the bias.
    unbiased = replace(tile, epilogue=replace(tile.epilogue, bias=False))
    shared = [transpose_sums(unbiased), _transpose_full(tile), pack_pixels(tile), micro_kernel(tile, lines)]
    kernel = filters_in_lanes(partial(_Packed, lines=lines), arguments(tile.epilogue), tile)
    return assemble("panel_conv", [kernel], shared)


_TRANSPOSE_FULL = Signature(
    "kernel.turn_whole",
    (
        Parameter("ptr", "sums", "noalias readonly"),
        Parameter("ptr", "r"),
        Parameter("ptr", "y"),
        Parameter("i64", "step"),
        Parameter("i64", "vectors"),
    ),
)


def _transpose_full(tile: RegisterTile) -> Function:
    """Sums [pixel][filter] of one vector of filters as results, where pixels and filters fill whole vectors."""
    t = VectorBuilder(tile.device)
    epilogue, step = tile.epilogue, I64("%step")
    with t.loop(0, I64("%vectors")) as number:
        sums = t.ptr_add(Ptr("%sums"), t.mul(number, t.bytes * tile.block))
        rows = [t.load(t.ptr_add(sums, 4 * tile.block * i)) for i in range(t.lanes)]
        if not epilogue.residual:
            rows = [activate(t, epilogue.steps, x) for x in rows]
        pixel = t.mul(number, t.bytes)
        for i, x in enumerate(t.transpose(rows)):
            by = t.add(t.mul(step, i), pixel)
            if epilogue.residual:
                x = activate(t, epilogue.steps, t.fadd(x, t.load(t.ptr_add(Ptr("%r"), by))))
            t.store(x, t.ptr_add(Ptr("%y"), by))
    return t.function(_TRANSPOSE_FULL)


class _Packed(PixelSource[PointwisePackedArgs]):
    """Pixels packed side by side, channel by channel."""

    def __init__(
        self, t: VectorBuilder, tile: RegisterTile, a: PointwisePackedArgs, target: RowTarget | None, *, lines: int
    ) -> None:
        super().__init__(t, tile, a, target)
        self.lines = lines
        self.panel_bytes = t.mul(a.channels, 4 * tile.block)
        self.unbiased = replace(tile, epilogue=replace(tile.epilogue, bias=False))

    def pack(self, part: PixelSpan) -> None:
        """Pack what the pixels of a tile see, prefetching the first weights meanwhile."""
        t, tile, a = self.t, self.tile, self.a
        with t.when(once_for(t, SCRATCH, 0, part.number)):
            following = t.ptr_add(a.w, t.mul(part.packed, self.panel_bytes))
            source = t.ptr_add(t.ptr_add(a.x, t.mul(part.image, a.image_step)), t.mul(part.group, a.group_step))
            with t.loop(0, part.count) as number:
                pixel = t.add(part.start, number)
                down = t.mul(t.sdiv(pixel, a.out_width), a.row_step)
                offset = t.add(down, t.mul(t.srem(pixel, a.out_width), a.column_step))
                t.store_i64(offset, t.element(a.where, "i64", number))
            rows_follow = t.icmp("eq", a.row_step, t.mul(a.out_width, a.column_step))
            contiguous = t.and_(rows_follow, t.icmp("eq", a.column_step, 4))
            full_rows = t.icmp("eq", t.srem(a.out_width, tile.pixels), 0)
            full = t.and_(full_rows, t.icmp("eq", t.srem(part.count, tile.pixels), 0))
            second = t.and_(t.icmp("eq", a.column_step, 8), full)
            form = t.select_int(contiguous, CONTIGUOUS, t.select_int(second, SECOND, STRIDED))
            arguments = (source, a.seen, a.channel_step, a.channels, part.count, a.where, following, form)
            t.call(pack_signature(tile), *arguments)

    def multiply(self, at: Corner, results: Ptr) -> None:
        """Go through register tiles, and for each through the channels piece by piece: its sums stay in L1."""
        t, tile, a, lines = self.t, self.tile, self.a, self.lines
        block, area = tile.block, t.mul(a.pixels, 4)
        weights = t.ptr_add(a.w, t.mul(at.packed, self.panel_bytes))
        bias = t.ptr_add(a.b, t.mul(at.packed, 4 * block)) if tile.epilogue.bias else NULL
        residual = self._residual(at)
        iterations = t.mul(t.sdiv(a.channels, BLOCKS.packed.unroll), lines)
        pieces = t.ceil_div(a.channels, BLOCKS.packed.piece)
        deep = t.round_up(t.ceil_div(a.channels, pieces), BLOCKS.packed.unroll)
        step, rows = tile_step(t, tile, a.channels), prefetched_rows(tile)
        with t.loop(0, t.ceil_div(at.count, tile.pixels)) as number:
            begin = t.mul(number, tile.pixels)
            line = t.add(t.mul(t.mul(t.srem(number, block // rows), rows), area), t.mul(begin, 4))
            ahead = t.mul(t.mul(number, iterations), t.device.caches.line)
            following = t.ptr_add(t.ptr_add(weights, self.panel_bytes), ahead)
            seen, onto = t.ptr_add(a.seen, t.mul(number, step)), t.ptr_add(a.sums, t.mul(begin, 4 * block))
            with t.loop(0, pieces) as piece:
                before = t.mul(piece, deep)
                some = t.smin(deep, t.sub(a.channels, before))
                prefetched = t.mul(t.sdiv(before, BLOCKS.packed.unroll), lines * t.device.caches.line)
                t.call(
                    micro_kernel_signature(tile, lines),
                    t.ptr_add(weights, t.mul(before, 4 * block)),
                    t.ptr_add(seen, t.mul(before, 4 * tile.pixels)),
                    some,
                    bias,
                    onto,
                    t.icmp("eq", piece, 0),
                    t.ptr_add(following, prefetched),
                    t.ptr_add(results, line),
                    t.ptr_add(residual, line) if tile.epilogue.residual else NULL,
                    area,
                )

    def _residual(self, at: Corner) -> Ptr:
        """Where the residual of a block of filters begins."""
        t, a = self.t, self.a
        if not self.tile.epilogue.residual:
            return NULL
        channel = t.add(t.mul(at.group, a.filters), at.first_filter)
        within = t.add(t.mul(channel, t.mul(a.pixels, 4)), t.mul(at.start, 4))
        return t.ptr_add(t.ptr_add(a.r, t.mul(at.image, a.r_image)), within)

    def finish(self, at: Corner, results: Ptr) -> None:
        """Transpose the sums, a vector of filters at a time; whole vectors of pixels need no masks."""
        t, tile, a = self.t, self.tile, self.a
        if self.target is not None:
            write_transposed(t, self.unbiased, a, at, results, self.target)
            return
        lanes, block, area, residual = t.lanes, tile.block, t.mul(a.pixels, 4), self._residual(at)
        with t.loop(0, tile.filters) as vector:
            own = t.smin(lanes, t.sub(a.filters, t.add(at.first_filter, t.mul(vector, lanes))))
            by = t.mul(t.mul(vector, lanes), area)
            target, here = t.ptr_add(results, by), t.ptr_add(a.sums, t.mul(vector, t.bytes))
            other = t.ptr_add(residual, by) if tile.epilogue.residual else NULL
            full = t.icmp("eq", own, lanes)
            whole = t.select_int(full, t.sdiv(at.count, lanes), 0)
            with t.when(full):
                t.call(_TRANSPOSE_FULL, here, other, target, area, whole)
            done = t.mul(whole, lanes)
            left = t.sub(at.count, done)
            with t.when(t.and_(t.icmp("sgt", own, 0), t.icmp("sgt", left, 0))):
                on = t.mul(done, 4)
                rest = t.ptr_add(here, t.mul(done, 4 * block))
                added = t.ptr_add(other, on) if tile.epilogue.residual else NULL
                y, apart = t.ptr_add(target, on), 4 * block
                write_finished(t, self.unbiased.epilogue, None, rest, NULL, added, y, area, own, left, apart, vector)


# Selection.


def pointwise_packed(conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidates:
    """The kernel of a convolution whose pixels see a pixel each, none of it outside the image."""
    of, limits = problem.geometry, LIMITS.packed
    if of.window != (1, 1) or any(conv.attrs["padding"]):
        return Refused("window_is_1x1_without_padding", str(of.window))
    if (few := between("channels_pay_for_transposes", problem.channels, limits.fewest_channels)) is not None:
        return few
    if not problem.is_level:
        return LEVEL
    pixels = known(of.out[0]) * known(of.out[1]) if of.is_known else limits.any_pixels
    tiles = [RegisterTile(device, *form, conv.epilogue, True) for form in forms_of(device)]
    best = min(tiles, key=lambda tile: _products(problem.filters, pixels, tile), default=None)
    if best is None:
        return Refused("device_has_embedded_broadcast", "no FMA that broadcasts a memory operand")
    if _products(problem.filters, pixels, best) > limits.waste * problem.filters * pixels:
        return Refused("filters_and_pixels_fill_lanes", f"{problem.filters} filters and {pixels} pixels")
    lines = BLOCKS.packed.lines if pixels >= BLOCKS.packed.few * best.pixels else BLOCKS.packed.many_lines
    code = partial(pointwise_packed_code, best, lines)
    return [Candidate(packed(conv, best.block), PointwisePacked(problem, best), code, "pointwise_packed")]


def _products(filters: int, pixels: int, tile: RegisterTile) -> int:
    """Products of a filter and a pixel, those of lanes that are empty included."""
    return filled(filters, tile) * -(-pixels // tile.pixels) * tile.pixels


@dataclass(frozen=True, slots=True)
class PointwisePacked(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile

    def declines(self, of: ConvProblem) -> Refused | None:
        """The condition that refuses sizes."""
        pixels = known(of.geometry.out[0]) * known(of.geometry.out[1])
        panels, limits = -(-of.filters // self.tile.block), LIMITS.packed
        if pixels == 0 or _products(of.filters, pixels, self.tile) > limits.waste * of.filters * pixels:
            return Refused("filters_and_pixels_fill_lanes", f"{of.filters} filters and {pixels} pixels")
        is_few = pixels <= limits.most_pixels
        if of.geometry.is_point:
            pays = is_few or (panels > 1 and of.channels >= limits.deep) or panels >= BLOCKS.packed.many_panels
        else:
            pays = not is_few or panels >= limits.few_panels
        if not pays:
            return Refused("panels_pay_for_packing", f"{panels} panels of {pixels} pixels and {of.channels} channels")
        # Every thread packs by itself.
        single = of.images * of.groups * self.pixel_parts(of) == 1 and panels < BLOCKS.packed.many_panels
        return (
            Refused("threads_share_packed_pixels", f"{panels} panels", f"at least {BLOCKS.packed.many_panels}")
            if single
            else None
        )

    def effort(self, of: ConvProblem) -> Effort:
        """What each image and group costs."""
        pixels = -(-known(of.geometry.out[0]) * known(of.geometry.out[1]) // self.tile.pixels) * self.tile.pixels
        lanes = self.tile.device.lanes
        return filters_effort(of, self.tile, pixels, transposed(pixels * of.channels / lanes, lanes))

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        tile, geometry = self.tile, of.geometry
        width = known(geometry.out[1])
        pixels = known(geometry.out[0]) * width
        panels, size = -(-of.filters // tile.block), packed_bytes(tile, of.channels)
        register_tiles, others = -(-pixels // tile.pixels), of.groups * panels
        least = -(-pixels // self._part(register_tiles, panels, size))
        parts = shared_parts(least, of.images, others, register_tiles // 2, tile.device)
        part = -(-register_tiles // parts) * tile.pixels
        parts = -(-pixels // part)
        column = geometry.steps[1] * geometry.strides[1]
        row = width * column if geometry.out[0] == 1 else geometry.steps[0] * geometry.strides[0]
        laid = arguments(tile.epilogue).laid_out(
            of.sizes_by_name("r_image")
            | {
                "pixels": pixels, "parts": parts, "part": part, "out_width": width, "row_step": row,
                "column_step": column,
            },
            {
                "sums": 4 * part * tile.block, "seen": part // tile.pixels * size, "where": 8 * part,
                **row_regions(tile.epilogue, 4 * tile.block * part),
            },
        )  # fmt: skip
        work = part * tile.block * of.channels // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, of.images * others * parts, work + 1)

    def pixel_parts(self, of: ConvProblem) -> int:
        """Tiles that share the pixels of an image."""
        pixels, tile = known(of.geometry.out[0]) * known(of.geometry.out[1]), self.tile
        panels, size = -(-of.filters // tile.block), packed_bytes(tile, of.channels)
        return -(-pixels // self._part(-(-pixels // tile.pixels), panels, size))

    def _part(self, tiles: int, panels: int, size: int) -> int:
        """Pixels of a tile: what they see stays in L2."""
        above, below = BLOCKS.packed.share
        room = self.tile.device.caches.l2_room * above // below
        together = max(1, min(BLOCKS.packed.tiles, room // size))
        if panels >= BLOCKS.packed.many_panels:
            together = max(together, min(2 * BLOCKS.packed.tiles, room // (2 * size)))
        parts = -(-tiles // together)
        # Two threads share an even number best.
        parts += parts % 2 if parts > 1 else 0
        return -(-tiles // parts) * self.tile.pixels

"""Convolution with few output pixels: filters in lanes, so that no lane is empty, and pixels at any position.

What a pixel sees is read scalar by scalar where it is: in the image, or in a copy of it with its padding. A register
tile has a list of its pixels' positions, and one of the taps' offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Carried, Ptr, Vec
from dovetail.codegen.llvm.kernel import SCRATCH, Arguments, KernelCode, assemble
from dovetail.codegen.llvm.once import once_for
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Tiling
from dovetail.targets.cpu.conv.candidate import LEVEL, Candidate, Candidates, ConvTiler, Effort, between
from dovetail.targets.cpu.conv.epilogue import RowTarget, arguments_of, row_regions
from dovetail.targets.cpu.conv.filters_in_lanes import (
    Corner,
    FilterArgs,
    PixelSource,
    PixelSpan,
    RegisterTile,
    filters_effort,
    filters_in_lanes,
    is_filled,
    not_filled,
    transpose_sums,
)
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.patches import each_tap, pack_phase, pack_phase_signature, prefetch_share
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS, shared_parts, tiles_of


@dataclass(frozen=True, slots=True)
class FewPixelsArgs(FilterArgs):
    """A piece is some channels; `padded` says whether there is anything around the image, which then has to be
    copied."""

    padded: I64
    taps: Region
    """Offsets of taps."""
    positions: Region
    """Offsets of pixels."""
    copy: Region
    """The image with its padding, where it has to be copied."""


def arguments(epilogue: Epilogue) -> Arguments[FewPixelsArgs]:
    """The arguments with or without bias and residual."""
    return arguments_of(FewPixelsArgs, epilogue, "r_image")


def forms_of(device: CpuDevice) -> tuple[tuple[int, int], ...]:
    """Register tiles: vectors of filters, and pixels."""
    return tiles_of(device).few_pixels


def least_waste(device: CpuDevice, pixels: int) -> tuple[int, int]:
    """The register tile that wastes least for a number of pixels."""
    return min(forms_of(device), key=lambda form: -(-pixels // form[1]) * form[1])


def few_pixels_code(tile: RegisterTile) -> KernelCode:
    """The kernel."""
    shared = [transpose_sums(tile), pack_phase(tile.device), register_tile(tile)]
    return assemble("small_conv", [filters_in_lanes(_Positions, arguments(tile.epilogue), tile)], shared)


def _signature(tile: RegisterTile) -> Signature:
    name = f"small_tile.{tile.device.lanes}.{tile.filters}.{tile.pixels}{'.point' if tile.point else ''}"
    return Signature(
        name,
        (
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "x", "noalias readonly"),
            Parameter("i64", "plane"), Parameter("ptr", "offsets", "noalias readonly"), Parameter("i64", "taps"),
            Parameter("i64", "channels"), Parameter("ptr", "where", "noalias readonly"),
            Parameter("ptr", "sums", "noalias"), Parameter("i1", "first"),
        ),
    )  # fmt: skip


def register_tile(tile: RegisterTile) -> Function:
    """The register tile: adds a piece of the channels to the accumulators at `sums`, or to nothing."""
    t = VectorBuilder(tile.device)
    spots = [(i, j) for j in range(tile.pixels) for i in range(tile.filters)]
    positions = [t.load_i64(t.ptr_add(Ptr("%where"), 8 * j)) for j in range(tile.pixels)]
    # Carried are the channel, pointers into weights and image, and the accumulators.
    with t.repeat([0], [Ptr("%w"), Ptr("%x")], [ZERO] * len(spots)) as state:
        each_tap(t, state, lambda tap, x: _accumulate(t, tile, tap, x, positions), once=tile.point)
        state.pointers[1] = t.ptr_add(state.pointers[1], I64("%plane"))
        state.integers[0] = t.following(state.integers[0])
        state.again = t.icmp("slt", state.integers[0], I64("%channels"))
    for (i, j), x in zip(spots, state.vectors, strict=True):
        # A piece is summed by itself and then added: two short sums round less than a long one.
        here = t.ptr_add(Ptr("%sums"), (j * tile.filters + i) * t.bytes)
        t.store(t.select_vec(I1("%first"), x, t.fadd(t.load(here), x)), here)
    return t.function(_signature(tile))


def _accumulate(t: VectorBuilder, tile: RegisterTile, state: Carried, x: Ptr, positions: Sequence[I64]) -> None:
    """Add one tap of one channel."""
    w = state.pointers[0]
    weights = [t.load(t.ptr_add(w, t.bytes * i)) for i in range(tile.filters)]
    sums: list[Vec] = []
    for j, position in enumerate(positions):
        seen = t.load_splat(t.ptr_add(x, position))
        held = state.vectors[j * tile.filters : (j + 1) * tile.filters]
        sums += [t.fma(weight, seen, total) for weight, total in zip(weights, held, strict=True)]
    state.pointers[0] = t.ptr_add(w, t.bytes * tile.filters)
    state.vectors[:] = sums


class _Positions(PixelSource[FewPixelsArgs]):
    """Pixels anywhere in an image, or in a copy of it with its padding: their positions are listed."""

    def __init__(self, t: VectorBuilder, tile: RegisterTile, a: FewPixelsArgs, target: RowTarget | None) -> None:
        super().__init__(t, tile, a, target)
        self.padded = t.icmp("ne", a.padded, 0)
        self.reach_rows = _reach(t, a.out_height, a.stride_rows, a.window_rows, a.dilation_rows)
        self.reach_columns = _reach(t, a.out_width, a.stride_columns, a.window_columns, a.dilation_columns)
        self.copied = t.mul(t.mul(self.reach_rows, self.reach_columns), 4)
        self.taps = t.mul(a.window_rows, a.window_columns)
        self.row_step = t.select_int(self.padded, t.mul(self.reach_columns, 4), a.row_step)
        self.column_step = t.select_int(self.padded, 4, a.column_step)
        self.plane = t.select_int(self.padded, self.copied, a.channel_step)
        self.seen: Ptr = a.copy
        with t.loop(0, a.window_rows) as i, t.loop(0, a.window_columns) as j:
            down = t.mul(t.mul(i, a.dilation_rows), self.row_step)
            offset = t.add(down, t.mul(t.mul(j, a.dilation_columns), self.column_step))
            t.store_i64(offset, t.element(a.taps, "i64", t.add(t.mul(i, a.window_columns), j)))

    def pack(self, part: PixelSpan) -> None:
        """Copy the image if it has padding, and list the positions of the pixels."""
        t, a = self.t, self.a
        source = t.ptr_add(t.ptr_add(a.x, t.mul(part.image, a.image_step)), t.mul(part.group, a.group_step))
        fresh = once_for(t, SCRATCH, 0, part.image_group)
        with t.when(t.and_(fresh, self.padded)), t.loop(0, a.channels) as channel:
            onto = t.ptr_add(a.copy, t.mul(channel, self.copied))
            of = t.ptr_add(source, t.mul(channel, a.channel_step))
            t.call(
                pack_phase_signature(t.lanes), of, onto, a.height, a.width, a.row_step, a.column_step, a.column_step,
                1, 1, t.sub(0, a.above), t.sub(0, a.before), self.reach_rows, self.reach_columns,
                t.mul(self.reach_columns, 4),
            )  # fmt: skip
        self.seen = t.select_ptr(self.padded, a.copy, source)
        tiles = t.ceil_div(part.count, self.tile.pixels)
        with t.when(once_for(t, SCRATCH, 1, part.index)), t.loop(0, t.mul(tiles, self.tile.pixels)) as one:
            # After the last pixel the last one is computed again.
            pixel = t.add(part.start, t.smin(one, t.sub(part.count, 1)))
            down = t.mul(t.mul(t.sdiv(pixel, a.out_width), a.stride_rows), self.row_step)
            across = t.mul(t.mul(t.srem(pixel, a.out_width), a.stride_columns), self.column_step)
            t.store_i64(t.add(down, across), t.element(a.positions, "i64", one))

    def multiply(self, at: Corner, results: Ptr) -> None:
        t, tile, a = self.t, self.tile, self.a
        row = 4 * tile.block
        tiles = t.ceil_div(at.count, tile.pixels)
        for piece, is_last in self.pieces(at, a.channels, t.mul(self.taps, row), a.piece):
            x = t.ptr_add(self.seen, t.mul(piece.first, self.plane))
            with t.loop(0, tiles) as number:
                begin = t.mul(number, tile.pixels)
                there = t.element(a.positions, "i64", begin)
                onto = t.ptr_add(a.sums, t.mul(begin, row))
                prefetch_share(t, t.ptr_add(piece.w, piece.size), piece.size, number, tiles)
                with t.when(is_last):
                    self.prefetch_results(at, results, begin)
                arguments = (piece.w, x, self.plane, a.taps, self.taps, piece.count, there, onto, piece.is_first)
                t.call(_signature(tile), *arguments)


def _reach(t: VectorBuilder, out: I64, stride: I64, window: I64, dilation: I64) -> I64:
    """How much of an axis all pixels see."""
    return t.add(t.mul(t.sub(out, 1), stride), t.add(t.mul(t.sub(window, 1), dilation), 1))


def few_pixels(conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidates:
    """The kernels of a convolution with few pixels and many filters."""
    if (short := between("sums_pay_for_transposes", problem.sums, LIMITS.few_pixels.fewest_sums)) is not None:
        return short
    if not problem.is_level:
        return LEVEL
    if any(not isinstance(size, int) for size in conv.attrs["padding"]):
        return Refused("padding_is_known", str(conv.attrs["padding"]))
    point = problem.geometry.taps == 1
    tiles = [RegisterTile(device, *form, conv.epilogue, point) for form in forms_of(device)]
    filled = [tile for tile in tiles if is_filled(problem.filters, tile)]
    return [_candidate(conv, problem, tile) for tile in filled] or not_filled(problem.filters, tiles[0])


def _candidate(conv: Convolution, problem: ConvProblem, tile: RegisterTile) -> Candidate:
    # Padding decides whether an image is copied.
    tiler = FewPixels(problem, tile, any(conv.attrs["padding"]))
    return Candidate(packed(conv, tile.block), tiler, lambda: few_pixels_code(tile), "few_pixels")


@dataclass(frozen=True, slots=True)
class FewPixels(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile
    padded: bool

    def declines(self, of: ConvProblem) -> Refused | None:
        """The condition that refuses sizes."""
        limits, lanes = LIMITS.few_pixels, self.tile.device.lanes
        pixels = known(of.geometry.out[0]) * known(of.geometry.out[1])
        most = limits.most_vectors * lanes if self.tile.point else tiles_of(self.tile.device).most_pixels
        if (many := between("pixels_are_few", pixels, 1, most)) is not None:
            return many
        deep = limits.deep * lanes
        if of.geometry.is_point and pixels > limits.point_vectors * lanes and of.channels < deep:
            return Refused("sums_pay_for_transposes", f"{of.channels} channels", f"at least {deep}")
        best = least_waste(self.tile.device, pixels)[1]
        return None if self.tile.pixels == best else Refused(
            "register_tile_wastes_least", f"{self.tile.pixels} pixels", str(best)
        )  # fmt: skip

    def effort(self, of: ConvProblem) -> Effort:
        """What each image and group costs."""
        return filters_effort(of, self.tile, known(of.geometry.out[0]) * known(of.geometry.out[1]), 0.0)

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, tile = of.geometry, self.tile
        count = known(geometry.out[0]) * known(geometry.out[1])
        others = of.groups * -(-of.filters // tile.block)
        least = -(-count // BLOCKS.few_pixels.part_pixels)
        parts = shared_parts(least, of.images, others, count // tile.pixels, tile.device)
        part = -(-count // (parts * tile.pixels)) * tile.pixels
        parts = -(-count // part)
        rows, columns = (
            (known(n) - 1) * s + (w - 1) * d + 1
            for n, s, w, d in zip(geometry.out, geometry.strides, geometry.window, geometry.dilations, strict=True)
        )
        together = -(-part // tile.pixels) * tile.pixels + 8
        laid = arguments(tile.epilogue).laid_out(
            geometry.sizes_by_name(Blocks(1, 1, 1, 1))
            | of.sizes_by_name("r_image")
            | {
                "pixels": count, "parts": parts, "part": part, "padded": int(self.padded),
                "piece": max(1, BLOCKS.few_pixels.piece // geometry.taps),
            },
            {
                "taps": 8 * geometry.taps, "positions": 8 * together, "sums": 4 * together * tile.block,
                **row_regions(tile.epilogue, 4 * tile.block * part),
                "copy": 4 * (rows * columns * of.channels + 2 * tile.device.lanes) if self.padded else 0,
            },
        )  # fmt: skip
        tiles = of.images * others * parts
        work = part * tile.block * of.sums // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, tiles, work + 1)

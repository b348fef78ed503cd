"""Convolution of few channels by a large window, as image networks begin: filters in lanes, rows of pixels.

A tile is one block of filters at some rows of one image. What these rows see is packed by phases of the strides, so
that the pixels of a row see contiguous elements; a register tile is a few pixels of one row. All weights of a block of
filters stay in L1. The sums of a row are transposed when it is done.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.handles import I64, TRUE, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, Arguments, KernelCode, assemble
from dovetail.codegen.llvm.once import once_for
from dovetail.codegen.llvm.vector import VectorBuilder
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
    PixelTiles,
    RegisterTile,
    broadcast_tile_of,
    broadcast_tiles,
    filters_effort,
    filters_in_lanes,
    is_filled,
    not_filled,
    transpose_sums,
    write_broadcast_tile,
)
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.patches import pack_phase, patch_layout, write_patch, write_tap_offsets
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS


@dataclass(frozen=True, slots=True)
class FewChannelsArgs(FilterArgs):
    """A part is some rows."""

    taps: Region
    """Offsets of taps."""
    moves: Region
    """From one product to the next, in bytes."""
    seen: Region


def arguments(epilogue: Epilogue) -> Arguments[FewChannelsArgs]:
    return arguments_of(FewChannelsArgs, epilogue, "r_image", without=("piece",))


def few_channels_code(tile: RegisterTile) -> KernelCode:
    """The kernel."""
    shared = [transpose_sums(tile), pack_phase(tile.device), broadcast_tiles(tile)]
    return assemble("row_conv", [filters_in_lanes(_Patch, arguments(tile.epilogue), tile)], shared)


class _Patch(PixelSource[FewChannelsArgs]):
    """Pixels of a row of a patch, which see contiguous elements; the products of a sum are listed."""

    def __init__(self, t: VectorBuilder, tile: RegisterTile, a: FewChannelsArgs, target: RowTarget | None) -> None:
        super().__init__(t, tile, a, target)
        self.patch = patch_layout(t, a)
        self.steps = t.mul(a.channels, self.patch.taps)
        write_tap_offsets(t, a, self.patch, a.taps)
        with t.loop(0, self.steps) as number:
            now, then = (self._offset(t.add(number, i)) for i in range(2))
            t.store_i64(t.sub(then, now), t.element(a.moves, "i64", number))
        self.tiles = PixelTiles.of(t, tile, a.out_width)
        self.seen: Ptr = a.seen

    def _offset(self, number: I64) -> I64:
        """Bytes from a pixel's own position to what a tap of a channel reads; after the last channel it is not read."""
        t, taps = self.t, self.patch.taps
        listed = t.load_i64(t.element(self.a.taps, "i64", t.srem(number, taps)))
        return t.add(t.mul(t.sdiv(number, taps), self.patch.channel), listed)

    def pack(self, part: PixelSpan) -> None:
        t, a = self.t, self.a
        with t.when(once_for(t, SCRATCH, 0, part.number)), t.loop(0, a.channels) as channel:
            image = t.ptr_add(t.ptr_add(a.x, t.mul(part.image, a.image_step)), t.mul(part.group, a.group_step))
            source = t.ptr_add(image, t.mul(channel, a.channel_step))
            onto = t.ptr_add(a.seen, t.mul(channel, self.patch.channel))
            write_patch(t, a, self.patch, source, onto, t.sdiv(part.start, a.out_width), I64("0"))

    def runs(self, part: PixelSpan) -> Iterator[tuple[I64, I64]]:
        """Rows."""
        t, a = self.t, self.a
        with t.loop(0, t.sdiv(part.count, a.out_width)) as row:
            self.seen = t.ptr_add(a.seen, t.mul(t.mul(row, self.patch.pitch), 4))
            yield t.add(part.start, t.mul(row, a.out_width)), a.out_width

    def multiply(self, at: Corner, results: Ptr) -> None:
        t, a, tiles = self.t, self.a, self.tiles
        weights = t.ptr_add(a.w, t.mul(t.mul(at.packed, self.steps), 4 * self.tile.block))
        with t.loop(0, tiles.count) as one:
            self.prefetch_results(at, results, t.mul(one, tiles.narrow))
            write_broadcast_tile(
                t, self.tile, tiles, one, weights, self.seen, a.sums, a.moves, self.steps, TRUE, 0
            )  # fmt: skip


def few_channels(conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidates:
    """The kernel of a convolution with few channels, a large window and many pixels."""
    tile = broadcast_tile_of(device, problem.filters, conv.epilogue, equidistant=False)
    limits = LIMITS.few_channels
    fewest = limits.fewest_sums * device.lanes
    if (other := between("sums_stay_in_l1", problem.sums, fewest, limits.most_sums)) is not None:
        return other
    if problem.groups != 1 or problem.geometry.taps == 1:
        return Refused("one_group_and_several_taps", f"{problem.groups} groups, {problem.geometry.taps} taps")
    if not is_filled(problem.filters, tile):
        return not_filled(problem.filters, tile)
    tiler = FewChannels(problem, tile)
    candidate = Candidate(packed(conv, tile.block), tiler, lambda: few_channels_code(tile), "few_channels")
    return [candidate] if problem.is_level else LEVEL


@dataclass(frozen=True, slots=True)
class FewChannels(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile

    def declines(self, of: ConvProblem) -> Refused | None:
        """The condition that refuses sizes."""
        height, width = known(of.geometry.out[0]), known(of.geometry.out[1])
        if width < self.tile.pixels:
            return Refused("rows_fill_a_register_tile", f"{width} pixels", f"at least {self.tile.pixels}")
        return between("pixels_are_many", height * width, LIMITS.few_channels.fewest_pixels)

    def effort(self, of: ConvProblem) -> Effort:
        """What each image costs."""
        (height, width), out = of.geometry.sizes, of.geometry.out
        seen = of.channels * known(height) * known(width)
        return filters_effort(of, self.tile, known(out[0]) * known(out[1]), seen / self.tile.device.lanes)

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, tile = of.geometry, self.tile
        height, width = known(geometry.out[0]), known(geometry.out[1])
        count = -(-height // max(1, BLOCKS.few_channels.part_pixels // width))
        rows = -(-height // count)
        blocks = Blocks(rows, width, -(-height // rows), 1)
        laid = arguments(tile.epilogue).laid_out(
            geometry.sizes_by_name(blocks)
            | of.sizes_by_name("r_image")
            | {"pixels": height * width, "parts": blocks.down, "part": rows * width},
            {
                "taps": 8 * geometry.taps, "moves": 8 * of.sums, "sums": 4 * width * tile.block,
                **row_regions(tile.epilogue, 4 * tile.block * width),
                "seen": 4 * (known(geometry.seen(blocks, of.channels)) + 2 * tile.device.lanes),
            },
        )  # fmt: skip
        work = rows * width * tile.block * of.sums // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, of.images * blocks.down * -(-of.filters // tile.block), work + 1)

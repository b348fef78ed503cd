"""Convolution by Winograd's scheme: how its work is tiled."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import Blocks, ConvGeometry
from dovetail.kernels.spec import Packed, Tiling
from dovetail.targets.cpu.conv.candidate import LEVEL, Candidate, Candidates, ConvTiler, Effort, between
from dovetail.targets.cpu.conv.epilogue import row_regions
from dovetail.targets.cpu.conv.filters_in_lanes import RegisterTile, broadcast_tile_of
from dovetail.targets.cpu.conv.packing import bindings
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS, WinogradLimits, shared_parts
from dovetail.targets.cpu.conv.winograd.kernel import arguments, winograd_code
from dovetail.targets.cpu.conv.winograd.scheme import FIVE_FOUR, FIVE_TWO, FOUR, TWO, TWO_FOUR, Scheme
from dovetail.targets.cpu.denormals import normal
from dovetail.targets.runtime.arrays.aligned import aligned

TRANSFORM = 12
"""Vectors copied in the time in which Winograd transforms one: two passes load, multiply by a small matrix and store,
and patches are apart in memory. Measured on layers of 64 to 320 channels: 11 to 17."""
LIMITS_OF: dict[Scheme, WinogradLimits] = {
    FOUR: LIMITS.winograd_4,
    TWO_FOUR: LIMITS.winograd_2x4,
    TWO: LIMITS.winograd_2,
    FIVE_FOUR: LIMITS.winograd_5x5_4,
    FIVE_TWO: LIMITS.winograd_5x5_2,
}


def winograd(schemes: Collection[Scheme], conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidates:
    """The kernels of a convolution by the schemes that may serve it."""
    of = problem.geometry
    if (of.strides, problem.groups) != ((1, 1), 1) or conv.x.rank != 4 or of.window not in ((3, 3), (5, 5)):
        window = f"{of.window}, strides {of.strides}, {problem.groups} groups"
        return Refused("window_is_3x3_or_5x5_without_strides", window)
    if not problem.is_level:
        return LEVEL
    of_window = [s for s in schemes if of.window == (s.taps, s.taps)]
    if not of_window:
        most = f"at most {LIMITS.large_schemes:.0%} of the layers by this scheme"
        return Refused("few_layers_take_large_patches", f"window {of.window}", most)
    fitting = [
        s for s in of_window if problem.channels >= LIMITS_OF[s].channels and problem.filters >= LIMITS_OF[s].filters
    ]
    if not fitting:
        least = LIMITS_OF[of_window[0]]
        sizes = f"{problem.channels} channels and {problem.filters} filters"
        return Refused("channels_and_filters_pay_for_transforms", sizes, f"{least.channels} and {least.filters}")
    return [_candidate(conv, problem, device, scheme) for scheme in fitting]


def _candidate(conv: Convolution, problem: ConvProblem, device: CpuDevice, scheme: Scheme) -> Candidate:
    """The kernel of a convolution by one of the schemes."""
    tile = broadcast_tile_of(device, problem.filters, conv.epilogue, equidistant=True)
    w = Packed(conv.w, f"winograd {scheme.name} {tile.block}", TransformedWeights(scheme, tile.block))
    tiler, dilated = Winograd(problem, scheme, tile), problem.geometry.dilations != (1, 1)
    code = partial(winograd_code, scheme, tile, dilated)
    return Candidate(bindings(conv, w, tile.block), tiler, code, f"winograd {scheme.name}")


@dataclass(frozen=True, slots=True)
class Winograd(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    scheme: Scheme
    tile: RegisterTile

    def declines(self, of: ConvProblem) -> Refused | None:
        """The condition that refuses sizes."""
        scheme, dilations = self.scheme, of.geometry.dilations
        height, width = known(of.geometry.out[0]), known(of.geometry.out[1])
        limits, count = LIMITS_OF[scheme].patches, scheme.count(height, width, dilations)
        if dilations == (1, 1):
            return between("patches_pay_for_weights", count, limits.start, min(limits.stop - 1, 1 << 30))
        smaller = Scheme.of(2, 2, scheme.taps)
        most = LIMITS.winograd_waste * smaller.count(height, width, dilations) * smaller.spots
        if scheme != smaller and count * scheme.spots > most:
            products = f"{count} patches of {scheme.spots}"
            return Refused("dilated_window_fills_patches", products, f"{most:.0f} products")
        return between("patches_pay_for_weights", count, limits.start)

    def effort(self, of: ConvProblem) -> Effort:
        """What each image costs."""
        scheme, lanes = self.scheme, self.tile.device.lanes
        patches = scheme.count(known(of.geometry.out[0]), known(of.geometry.out[1]), of.geometry.dilations)
        filters = -(-of.filters // self.tile.block) * self.tile.filters
        transforms = TRANSFORM * patches * scheme.spots * (of.channels + of.filters) / lanes
        return Effort(patches * of.channels * scheme.spots * filters, transforms, lanes, scheme.spots)

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        scheme, tile, device = self.scheme, self.tile, self.tile.device
        height, width = known(of.geometry.out[0]), known(of.geometry.out[1])
        dilations = of.geometry.dilations
        down, across = scheme.down.patches(height, dilations[0]), scheme.across.patches(width, dilations[1])
        window, apart = (scheme.down.patch, scheme.across.patch), (scheme.down.out, scheme.across.out)
        pixels = ConvGeometry(
            of.geometry.sizes, of.geometry.steps, (down, across), window, apart, dilations, of.geometry.before
        )
        above, below = BLOCKS.winograd.share
        room = device.caches.l2_room * above // below // (4 * scheme.spots * of.channels)
        others = -(-of.filters // tile.block)
        room = max(device.lanes, room)
        room = min(room, _shared(down * across, across, room, of.images, others, tile))
        patches = _patches(down, across, room) if dilations == (1, 1) else _rows(down, across, room, dilations[1])
        blocks = patches.blocks
        most = known(blocks.rows) * known(blocks.columns)
        transformed = -(-4 * most * of.channels // 64) * 64 + 4 * device.lanes
        image, channel = of.steps
        laid = arguments(tile.epilogue).laid_out(
            pixels.sizes_by_name(blocks)
            | {
                "channels": of.channels, "filters": of.filters, "image_step": image, "channel_step": channel,
                "result_height": height, "result_width": width, "height_of_block": patches.rows,
                "parts": patches.parts, "part": patches.part, "piece": BLOCKS.winograd.piece,
                **dict(zip(("r_image",), of.residual, strict=False)), **dict(of.strides),
            },
            {
                "taps": 8 * scheme.spots, "patches": scheme.spots * transformed,
                "sums": scheme.spots * 4 * (patches.part * tile.block + device.lanes),
                "results": 4 * tile.block * scheme.results * most,
                **row_regions(tile.epilogue, 4 * tile.block * scheme.across.out * known(blocks.columns)),
                "seen": 4 * (known(pixels.seen(blocks, 1)) + 2 * device.lanes),
            },
        )  # fmt: skip
        tiles = of.images * others * blocks.down * blocks.across * patches.parts
        work = patches.part * of.channels * scheme.spots * tile.filters // 2
        return Tiling(laid.sizes, laid.scratch, tiles, work + 1)


@dataclass(frozen=True, slots=True)
class Patches:
    """How patches are cut: blocks with the rows of one part, rows of a block, its parts and their patches."""

    blocks: Blocks
    rows: int
    parts: int
    part: int


def _patches(height: int, width: int, room: int) -> Patches:
    """Blocks that fit, or parts of one block where a row of patches is short: an even number, so that threads share."""
    count = height * width
    if count <= room:
        return Patches(Blocks(height, width, 1, 1), height, 1, count)
    parts = -(-count // (2 * room)) * 2
    part = -(-count // parts)
    if part >= 3 * width:
        return Patches(Blocks(min(height, (part - 2) // width + 2), width, 1, 1), height, parts, part)
    columns, across = _cut(width, room)
    rows, down = _cut(height, max(1, room // columns))
    return Patches(Blocks(rows, columns, down, across), rows, 1, rows * columns)


def _rows(height: int, width: int, room: int, dilation: int) -> Patches:
    """Blocks whose columns are a multiple of the dilation: only then are their pixels contiguous."""
    groups, across = _cut(-(-width // dilation), max(1, room // dilation))
    columns = groups * dilation
    rows, down = _cut(height, max(1, room // columns))
    return Patches(Blocks(rows, columns, down, across), rows, 1, rows * columns)


def _shared(count: int, width: int, room: int, images: Size, others: int, tile: RegisterTile) -> int:
    """Patches of a part where every thread has one, if it holds a register tile: whole rows, or three at least."""
    least, most = -(-count // room), -(-count // tile.pixels)
    share = -(-count // shared_parts(least, images, others, most, tile.device))
    return max(tile.pixels, share if share >= 3 * width else -(-share // width) * width)


def _cut(size: int, most: int) -> tuple[int, int]:
    count = -(-size // most)
    return -(-size // count), count


@dataclass(frozen=True, slots=True)
class TransformedWeights:
    """Weights [m, c, r, r] as [block of filters][spot][c][filter], transformed; 0 in what is left of the last block."""

    scheme: Scheme
    block: int

    def __call__(self, w: Array) -> Array:
        blocks, spots = -(-w.shape[0] // self.block), self.scheme.spots
        packed = np.zeros((blocks * self.block, w.shape[1], spots), np.float32)
        packed[: w.shape[0]] = self.scheme.weights(w)
        split = packed.reshape((blocks, self.block, w.shape[1], spots))
        blocked = aligned((blocks, spots, w.shape[1], self.block))
        blocked[...] = split.transpose((0, 3, 2, 1))
        return normal(blocked)

"""Convolution by Winograd's scheme: how its work is tiled."""

from __future__ import annotations

from functools import partial

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import Blocks, ConvGeometry
from dovetail.kernels.spec import Number, Packed, Tiling
from dovetail.targets.cpu.conv.broadcast_tile import broadcast_tile_of
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.packing import bindings
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.register_tile import RegisterTile
from dovetail.targets.cpu.conv.rows import row_regions
from dovetail.targets.cpu.conv.sharing import shared_parts
from dovetail.targets.cpu.conv.winograd.kernel import arguments, winograd_code
from dovetail.targets.cpu.conv.winograd.scheme import Scheme
from dovetail.targets.cpu.denormals import normal
from dovetail.targets.runtime.arrays.aligned import aligned


def winograd(found: Convolution, problem: ConvProblem, device: CpuDevice, scheme: Scheme) -> Candidate:
    """The kernel of a convolution by one of the schemes."""
    tile = broadcast_tile_of(device, problem.filters, found.epilogue, equidistant=True)
    w = Packed(found.w, f"winograd {scheme.name} {tile.block}", TransformedWeights(scheme, tile.block))
    tiler, dilated = Winograd(problem, scheme, tile), problem.geometry.dilations != (1, 1)
    code = partial(winograd_code, scheme, tile, dilated)
    return Candidate(bindings(found, w, tile.block), tiler, code, f"winograd {scheme.name}")


@dataclass(frozen=True, slots=True)
class Winograd:
    """How the work is tiled."""

    problem: ConvProblem
    scheme: Scheme
    tile: RegisterTile

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

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
        found = aligned((blocks, spots, w.shape[1], self.block))
        found[...] = split.transpose((0, 3, 2, 1))
        return normal(found)

"""Convolution by a k×k window with few output pixels: how its work is tiled."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.epilogue import row_regions
from dovetail.targets.cpu.conv.few_pixels_kxk.kernel import arguments, few_pixels_kxk_code
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.register_tile import RegisterTile
from dovetail.targets.cpu.conv.sharing import shared_parts


def few_pixels_kxk(found: Convolution, problem: ConvProblem, tile: RegisterTile) -> Candidate:
    """The kernel of a convolution with few pixels, many filters and a window of several taps."""
    tiler = FewPixelsKxk(problem, tile)
    return Candidate(packed(found, tile.block), tiler, lambda: few_pixels_kxk_code(tile), "few_pixels_kxk")


@dataclass(frozen=True, slots=True)
class FewPixelsKxk:
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, tile = of.geometry, self.tile
        height, width = known(geometry.out[0]), known(geometry.out[1])
        count = height * width
        others = of.groups * -(-of.filters // tile.block)
        least = -(-count // BLOCKS.few_pixels_kxk.part_pixels)
        parts = shared_parts(least, of.images, others, count // tile.pixels, tile.device)
        part = -(-count // parts)
        rows = min(height, (part - 2) // width + 2)
        tile_step = -(-of.sums * 4 * tile.pixels // 64) * 64 + BLOCKS.kxk_apart
        planes = geometry.window[1] * geometry.phases_down * (rows + geometry.over[0])
        laid = arguments(tile.epilogue).laid_out(
            geometry.sizes_by_name(Blocks(rows, 1, 1, 1))
            | of.sizes_by_name("r_image")
            | {
                "pixels": count, "parts": parts, "part": part, "piece": BLOCKS.few_pixels_kxk.piece,
                "tile_step": tile_step,
            },
            {
                "taps": 8 * geometry.taps, "sums": 4 * part * tile.block, "packed": -(-part // tile.pixels) * tile_step,
                **row_regions(tile.epilogue, 4 * tile.block * part),
                "seen": 4 * (planes * width + 4 * tile.device.lanes),
            },
        )  # fmt: skip
        tiles = of.images * others * parts
        work = part * tile.block * of.sums // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, tiles, work + 1)

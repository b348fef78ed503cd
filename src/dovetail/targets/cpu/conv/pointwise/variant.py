"""1×1 convolution that reads contiguous pixels where they are: how its work is tiled."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.direct.tile import DirectTile
from dovetail.targets.cpu.conv.epilogue import row_regions
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.pointwise.kernel import arguments, pointwise_code
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.sharing import shared_parts


def pointwise(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidate:
    """The kernel of a convolution whose pixels are contiguous, one row of them, and see a pixel each."""
    tile = DirectTile.of(device, problem.filters, found.epilogue, True)
    return Candidate(packed(found, tile.filters), Pointwise(problem, tile), lambda: pointwise_code(tile), "pointwise")


@dataclass(frozen=True, slots=True)
class Pointwise:
    """How the work is tiled."""

    problem: ConvProblem
    tile: DirectTile

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        tile, pixels, lanes = self.tile, known(of.geometry.out[1]), self.tile.device.lanes
        vectors = -(-pixels // lanes)
        bands, tiles = -(-vectors // tile.vectors), -(-of.filters // tile.filters)
        work = tile.vectors * lanes * of.channels * tile.filters
        # What a band sees is read anew for each part of the filters.
        blocks, part_work = BLOCKS.pointwise, BLOCKS.direct.part_work
        together = min(blocks.together, tiles * bands // blocks.fewest_tiles)
        filter_part = min(tiles, max(1, part_work // work, together))
        pixel_part = max(1, min(bands, part_work // (work * filter_part)))
        filter_parts, held = -(-tiles // filter_part), 1
        shared = shared_parts(-(-bands // pixel_part), of.images, of.groups * filter_parts, bands, tile.device)
        pixel_part = -(-bands // shared)
        if tile.epilogue.rows is not None:
            # Steps go over rows of several bands, which are longer.
            most = bands * -(-tiles // filter_part) // blocks.fewest_tiles
            pixel_part = held = max(pixel_part, min(blocks.row_bands, most))
        pixel_parts = -(-bands // pixel_part)
        wide = 4 * lanes * tile.vectors
        laid = arguments(tile.epilogue).laid_out(
            of.sizes_by_name("r_image")
            | {
                "pixels": pixels, "pixel_parts": pixel_parts, "pixel_part": pixel_part, "filter_parts": filter_parts,
                "filter_part": filter_part, "depth": -(-of.channels // -(-of.channels // blocks.depth)),
            },
            {
                "sums": wide * filter_part * tile.filters * held, "panel": wide * of.channels,
                **row_regions(tile.epilogue),
            },
        )  # fmt: skip
        count = of.images * of.groups * pixel_parts * filter_parts
        return Tiling(laid.sizes, laid.scratch, count, work * filter_part * pixel_part // (2 * lanes) + 1)

"""Convolution of few channels by a large window, as image networks begin: how its work is tiled."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.epilogue import row_regions
from dovetail.targets.cpu.conv.few_channels.kernel import arguments, few_channels_code
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.register_tile import RegisterTile


def few_channels(found: Convolution, problem: ConvProblem, tile: RegisterTile) -> Candidate:
    """The kernel of a convolution with few channels, a large window and many pixels."""
    tiler = FewChannels(problem, tile)
    return Candidate(packed(found, tile.block), tiler, lambda: few_channels_code(tile), "few_channels")


@dataclass(frozen=True, slots=True)
class FewChannels:
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, tile = of.geometry, self.tile
        height, width = known(geometry.out[0]), known(geometry.out[1])
        count = -(-height // max(1, BLOCKS.few_channels.part_pixels // width))
        rows = -(-height // count)
        blocks = Blocks(rows, width, -(-height // rows), 1)
        sizes = of.sizes_by_name("r_image")
        for name in ("groups", "group_step"):
            del sizes[name]
        laid = arguments(tile.epilogue).laid_out(
            geometry.sizes_by_name(blocks) | sizes,
            {
                "taps": 8 * geometry.taps, "moves": 8 * of.sums, "sums": 4 * width * tile.block,
                **row_regions(tile.epilogue, 4 * tile.block * width),
                "seen": 4 * (known(geometry.seen(blocks, of.channels)) + 2 * tile.device.lanes),
            },
        )  # fmt: skip
        work = rows * width * tile.block * of.sums // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, of.images * blocks.down * -(-of.filters // tile.block), work + 1)

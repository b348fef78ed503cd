"""Convolution of few channels by a large window, as image networks begin: when it is served so, and how it is tiled."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.broadcast_tile import broadcast_tile_of
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.few_channels.kernel import arguments, few_channels_code
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.register_tile import RegisterTile

FEWEST_SUMS, MOST_SUMS = 100, 256
"""Products of a result below which transposing it costs more than full lanes save, and above which the weights of a
block of filters do not stay in L1."""
FEWEST_PIXELS = 800
"""Pixels below which other kernels are better."""
MOST_WASTE = 1.1
"""Lanes, and pixels of register tiles, to those that are wanted, at most."""
PART_PIXELS = 450
"""Pixels of a tile, about."""


def few_channels(found: Convolution, problem: ConvProblem, device: CpuDevice) -> list[Candidate]:
    """The kernel of a convolution with few channels, a large window and many pixels."""
    tile = broadcast_tile_of(device, problem.filters, found.epilogue, equidistant=False)
    full = -(-problem.filters // tile.block) * tile.block <= MOST_WASTE * problem.filters
    fitting = FEWEST_SUMS <= problem.sums <= MOST_SUMS and problem.groups == 1 and problem.geometry.taps > 1
    if not full or not fitting or not problem.is_level:
        return []
    tiler = FewChannels(problem, tile)
    return [Candidate(packed(found, tile.block), tiler, lambda: few_channels_code(tile), "few_channels")]


@dataclass(frozen=True, slots=True)
class FewChannels:
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling | None:
        """The tiling, where there are many pixels, and rows are long."""
        geometry, tile = of.geometry, self.tile
        height, width = known(geometry.out[0]), known(geometry.out[1])
        if height * width < FEWEST_PIXELS or width < tile.pixels:
            return None
        count = -(-height // max(1, PART_PIXELS // width))
        rows = -(-height // count)
        blocks = Blocks(rows, width, -(-height // rows), 1)
        sizes = of.sizes_by_name("r_image")
        for name in ("groups", "group_step"):
            del sizes[name]
        laid = arguments(tile.epilogue).laid_out(
            geometry.sizes_by_name(blocks) | sizes,
            {
                "taps": 8 * geometry.taps, "moves": 8 * of.sums, "sums": 4 * width * tile.block,
                "seen": 4 * (known(geometry.seen(blocks, of.channels)) + 2 * tile.device.lanes),
            },
        )  # fmt: skip
        work = rows * width * tile.block * of.sums // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, of.images * blocks.down * -(-of.filters // tile.block), work + 1)

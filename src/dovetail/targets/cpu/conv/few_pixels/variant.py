"""Convolution with few output pixels and many filters: how its work is tiled."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.epilogue import row_regions
from dovetail.targets.cpu.conv.few_pixels.kernel import arguments, few_pixels_code
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.register_tile import RegisterTile
from dovetail.targets.cpu.conv.sharing import shared_parts


def few_pixels(found: Convolution, problem: ConvProblem, tile: RegisterTile) -> Candidate:
    """The kernel of a convolution with few pixels and many filters."""
    # Padding decides whether an image is copied.
    tiler = FewPixels(problem, tile, any(found.attrs["padding"]))
    return Candidate(packed(found, tile.block), tiler, lambda: few_pixels_code(tile), "few_pixels")


@dataclass(frozen=True, slots=True)
class FewPixels:
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile
    padded: bool

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

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

"""Convolution with few output pixels and many filters: when it is served so, and how its work is tiled."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.few_pixels.kernel import arguments, few_pixels_code, forms_of, least_waste
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.register_tile import RegisterTile

MOST_PIXELS = 800
"""Pixels above which vectors along them waste little, and need no transpose."""
MOST_POINTS = 200
"""The same for a 1×1 window, where each activation is used but once for a filter."""
FEW_POINTS, DEEP = 64, 200
"""Pixels up to which lanes of pixels waste too much in any case; with more, fewer channels than `DEEP` make sums too
short to be transposed, where pixels are contiguous."""
FEWEST_SUMS = 128
"""Products in a sum below which transposing results costs more than full lanes save."""
PIECE = 64
"""Products of a sum that one register tile takes at a time: their weights stay in L1."""
PART_PIXELS = 112
"""Pixels of a tile, about."""
MOST_WASTE = 1.1
"""Lanes to filters, at most: lanes without a filter are as bad as those without a pixel."""


def few_pixels(found: Convolution, problem: ConvProblem, device: CpuDevice) -> list[Candidate]:
    """The kernels of a convolution with few pixels and many filters."""
    # Padding decides whether an image is copied.
    padding = found.result.attrs["padding"]
    if problem.sums < FEWEST_SUMS or not problem.is_level or any(not isinstance(size, int) for size in padding):
        return []
    point = problem.geometry.taps == 1
    tiles = [RegisterTile(device, *form, found.epilogue, point) for form in forms_of(device)]
    full = [s for s in tiles if -(-problem.filters // s.block) * s.block <= MOST_WASTE * problem.filters]
    return [_candidate(found, problem, tile) for tile in full]


def _candidate(found: Convolution, problem: ConvProblem, tile: RegisterTile) -> Candidate:
    tiler = FewPixels(problem, tile, any(found.result.attrs["padding"]))
    return Candidate(packed(found, tile.block), tiler, lambda: few_pixels_code(tile), "few_pixels")


@dataclass(frozen=True, slots=True)
class FewPixels:
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile
    padded: bool

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling | None:
        """The tiling, where there are few pixels and no other register tile wastes less of them."""
        geometry, tile = of.geometry, self.tile
        count = known(geometry.out[0]) * known(geometry.out[1])
        if not 0 < count <= (MOST_POINTS if tile.point else MOST_PIXELS):
            return None
        if geometry.is_point and count > FEW_POINTS and of.channels < DEEP:
            return None
        if tile.pixels != least_waste(tile.device, count)[1]:
            return None
        parts = -(-count // PART_PIXELS)
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
                "pixels": count, "parts": parts, "part": part, "piece": max(1, PIECE // geometry.taps),
                "padded": int(self.padded),
            },
            {
                "taps": 8 * geometry.taps, "positions": 8 * together, "sums": 4 * together * tile.block,
                "copy": 4 * (rows * columns * of.channels + 2 * tile.device.lanes) if self.padded else 0,
            },
        )  # fmt: skip
        tiles = of.images * of.groups * -(-of.filters // tile.block) * parts
        work = part * tile.block * of.sums // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, tiles, work + 1)

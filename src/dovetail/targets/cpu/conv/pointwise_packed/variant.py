"""1×1 convolution on packed panels of filters: how its work is tiled."""

from __future__ import annotations

from functools import partial

from dovetail.dataclass import dataclass
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.epilogue import row_regions
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.pointwise_packed.kernel import arguments, pointwise_packed_code
from dovetail.targets.cpu.conv.pointwise_packed.pack import packed_bytes
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.register_tile import RegisterTile
from dovetail.targets.cpu.conv.sharing import shared_parts


def pointwise_packed(found: Convolution, problem: ConvProblem, tile: RegisterTile, pixels: int) -> Candidate:
    """The kernel of a convolution whose pixels see a pixel each, none of it outside the image."""
    lines = BLOCKS.packed.lines if pixels >= BLOCKS.packed.few * tile.pixels else BLOCKS.packed.many_lines
    code = partial(pointwise_packed_code, tile, lines)
    return Candidate(packed(found, tile.block), PointwisePacked(problem, tile), code, "pointwise_packed")


@dataclass(frozen=True, slots=True)
class PointwisePacked:
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        tile, geometry = self.tile, of.geometry
        width = known(geometry.out[1])
        pixels = known(geometry.out[0]) * width
        panels, size = -(-of.filters // tile.block), packed_bytes(tile, of.channels)
        register_tiles, others = -(-pixels // tile.pixels), of.groups * panels
        least = -(-pixels // self._part(register_tiles, panels, size))
        parts = shared_parts(least, of.images, others, register_tiles // 2, tile.device)
        part = -(-register_tiles // parts) * tile.pixels
        parts = -(-pixels // part)
        column = geometry.steps[1] * geometry.strides[1]
        row = width * column if geometry.out[0] == 1 else geometry.steps[0] * geometry.strides[0]
        laid = arguments(tile.epilogue).laid_out(
            of.sizes_by_name("r_image")
            | {
                "pixels": pixels, "pixel_parts": parts, "pixel_part": part, "filter_parts": panels, "filter_part": 1,
                "width": width, "row_step": row, "column_step": column,
            },
            {
                "sums": 4 * part * tile.block, "seen": part // tile.pixels * size, "where": 8 * part,
                **row_regions(tile.epilogue, 4 * tile.block * part),
            },
        )  # fmt: skip
        work = part * tile.block * of.channels // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, of.images * others * parts, work + 1)

    def pixel_parts(self, of: ConvProblem) -> int:
        """Tiles that share the pixels of an image."""
        pixels, tile = known(of.geometry.out[0]) * known(of.geometry.out[1]), self.tile
        panels, size = -(-of.filters // tile.block), packed_bytes(tile, of.channels)
        return -(-pixels // self._part(-(-pixels // tile.pixels), panels, size))

    def _part(self, tiles: int, panels: int, size: int) -> int:
        """Pixels of a tile: what they see stays in L2."""
        above, below = BLOCKS.packed.share
        room = self.tile.device.caches.l2_room * above // below
        together = max(1, min(BLOCKS.packed.tiles, room // size))
        if panels >= BLOCKS.packed.many_panels:
            together = max(together, min(2 * BLOCKS.packed.tiles, room // (2 * size)))
        parts = -(-tiles // together)
        # Two threads share an even number best.
        parts += parts % 2 if parts > 1 else 0
        return -(-tiles // parts) * self.tile.pixels

"""Pixels in the lanes of vectors: the register tile of filters by vectors of pixels, and what it costs.

`direct` goes through all channels and taps for a register tile, whose patch it packed; `pointwise` reads pixels where
they are, and takes some channels at a time for all filters. Their nests stay apart: one has filters outside and all
channels inside, the other pieces of channels outside and filters inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.codegen.llvm.handles import Ptr, Vec
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import ConvProblem, known
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.candidate import Effort, rate
from dovetail.targets.cpu.conv.policy import BLOCKS, tiles_of


@dataclass(frozen=True, slots=True)
class PixelTile:
    """A register tile with pixels in lanes: filters by vectors of columns, and what becomes of a sum."""

    device: CpuDevice
    filters: int
    vectors: int
    """Vectors of columns, at most."""
    epilogue: Epilogue
    point: bool
    """Whether the window has one tap."""
    zero_stuffed: bool = False
    """Whether there are zeros between the pixels, as a transposed convolution has them."""
    packs: bool = False
    """Whether filters are those of a run, which each thread packs for itself."""

    @staticmethod
    def of(
        device: CpuDevice, filters: int, epilogue: Epilogue, point: bool = False, zero_stuffed: bool = False
    ) -> PixelTile:
        """As many accumulators as registers hold next to their operands, with filters cut evenly: 12 are 6 and 6."""
        shape = tiles_of(device)
        tiles = -(-filters // shape.direct_filters)
        rows = -(-filters // tiles)
        vectors = max(1, min(BLOCKS.direct.most_vectors, (device.registers - shape.direct_spare) // rows))
        return PixelTile(device, rows, vectors, epilogue, point, zero_stuffed)

    @property
    def summing(self) -> PixelTile:
        """The register tile, which leaves the residual, the activation after it and steps to the finished row."""
        return replace(self, epilogue=replace(self.epilogue.before_residual, rows=None), packs=False)


def with_products(t: VectorBuilder, tile: PixelTile, w: Ptr, seen: Sequence[Vec], sums: Sequence[Vec]) -> list[Vec]:
    """The sums [filter][vector] with the products of a weight of each filter and what all pixels see."""
    totals: list[Vec] = []
    for i in range(tile.filters):
        weight = t.load_splat(t.ptr_add(w, 4 * i))
        own = sums[i * len(seen) : (i + 1) * len(seen)]
        totals += [t.fma(weight, pixels, total) for pixels, total in zip(seen, own, strict=True)]
    return totals


def pixels_effort(of: ConvProblem, tile: PixelTile) -> Effort:
    """Each row of pixels fills vectors of its own; contiguous pixels of a 1×1 window are one row."""
    lanes = tile.device.lanes
    height, width = known(of.geometry.out[0]), known(of.geometry.out[1])
    height, width = (1, height * width) if of.geometry.is_point else (height, width)
    vectors, rows = -(-width // lanes), -(-of.filters // tile.filters) * tile.filters
    along = min(tile.vectors, max(1, vectors))
    seen = of.channels * known(of.geometry.sizes[0]) * known(of.geometry.sizes[1]) / lanes
    return Effort(height * vectors * rows * of.sums / rate(tile.filters, along), seen, lanes)

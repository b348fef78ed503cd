"""Direct convolution, which serves every problem: how its work is tiled."""

from __future__ import annotations

from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.direct.kernel import RESIDUAL, ZERO_STUFFING, arguments, direct_code
from dovetail.targets.cpu.conv.direct.tile import DirectTile
from dovetail.targets.cpu.conv.epilogue import row_regions
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.policy import BLOCKS


def direct(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidate:
    """The kernel that serves every convolution."""
    if problem.is_level:
        problem = replace(problem, geometry=problem.geometry.flat())
    tile = DirectTile.of(device, problem.filters, found.epilogue, problem.geometry.taps == 1)
    return Candidate(packed(found, tile.filters), Direct(problem, tile), lambda: direct_code(tile), "direct")


@dataclass(frozen=True, slots=True)
class Direct:
    """How the work is tiled."""

    problem: ConvProblem
    tile: DirectTile
    spread: tuple[int, ...] = ()
    """Of a transposed convolution: the distances of two pixels down and across, zeros between them."""
    strides: tuple[tuple[str, int], ...] = ()
    """Of filters and a bias that only a run knows, by name, in bytes."""

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling, also of sizes that are symbols."""
        tile, geometry, lanes = self.tile, of.geometry, self.tile.device.lanes
        blocks = geometry.blocks(of.channels, tile.device, tile.vectors)
        work = blocks.rows * blocks.columns * of.sums * tile.filters
        register_tiles = -(-of.filters // tile.filters)
        part = max(1, min(register_tiles, BLOCKS.direct.part_work // max(1, work))) if isinstance(work, int) else 1
        parts = -(-register_tiles // part)
        laid = arguments(tile).laid_out(
            geometry.sizes_by_name(blocks)
            | of.sizes_by_name(*RESIDUAL)
            | {"parts": parts, "part": part}
            | dict(zip(ZERO_STUFFING, self.spread, strict=False))
            | dict(self.strides),
            {
                **self._packed(of.groups * register_tiles * tile.filters, of.sums),
                "taps": 8 * geometry.taps, "results": 4 * tile.filters * (geometry.run(blocks) + lanes),
                "seen": 4 * (geometry.seen(blocks, of.channels) + 2 * lanes), **row_regions(tile.epilogue),
            },
        )  # fmt: skip
        tiles = of.images * of.groups * blocks.down * blocks.across * parts
        # An FMA multiplies a vector, and two are done at once.
        return Tiling(laid.sizes, laid.scratch, tiles, work * part // (2 * lanes) + 1)

    def _packed(self, filters: int, sums: int) -> dict[str, Size]:
        """The parts of the workspace for filters and a bias of a run."""
        if not self.tile.packs:
            return {}
        bias: dict[str, Size] = {"packed_b": 4 * filters} if self.tile.epilogue.bias else {}
        return {"packed_w": 4 * filters * sums, **bias}

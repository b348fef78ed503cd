"""Convolution with fewer results than taps: which ones the kernel takes, and how its work is tiled."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Protocol

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.spec import Number, TensorLocations, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.few_results.kernel import ARGUMENTS, FewResultsForm, few_results_code
from dovetail.targets.cpu.conv.few_results.tile import FewResultsTile
from dovetail.targets.cpu.conv.packing import pointers
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS


def few_results(
    found: Convolution, problem: ConvProblem, device: CpuDevice, locations: TensorLocations
) -> Candidate | Refused:
    """The kernel of a convolution whose filters are as large as images, as in the gradient of filters."""
    geometry = problem.geometry
    if not geometry.is_known or not isinstance(problem.images, int) or 0 in (*geometry.sizes, problem.images):
        return Refused("sizes_are_known", f"{problem.images} images of {geometry.sizes}", "some pixels")
    results = (known(geometry.out[0]), known(geometry.out[1]))
    tile = tile_for(device, problem.groups, problem.filters, results, geometry.window, geometry)
    if isinstance(tile, Refused):
        return tile
    epilogue = found.epilogue
    if epilogue.bias or epilogue.residual or epilogue.rows is not None:
        return Refused("epilogue_is_an_activation", "a bias, a residual or steps on rows")
    strides = locations(found.w).strides
    steps = tuple([step for step in strides if isinstance(step, int)])
    if len(steps) != len(strides):
        return Refused("filters_have_known_strides", f"strides {strides}")
    if len(steps) == 3:
        steps = (*steps[:2], 0, steps[2])
    form = FewResultsForm(tile, epilogue, "along" if steps[3] == 4 else "strided")
    tiler = FewResults(problem, form, steps)
    return Candidate(pointers(found, found.w, None), tiler, lambda: few_results_code(form), "few_results")


class Steps(Protocol):
    """How far apart results are, and pixels of the window."""

    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dilations(self) -> tuple[int, ...]: ...


def tile_for(
    device: CpuDevice, groups: int, filters: int, results: Sequence[int], window: Sequence[int], apart: Steps
) -> FewResultsTile | Refused:
    """The register tile for sizes of a convolution, or the condition that refuses them."""
    if groups != 1 or prod(results) >= prod(window) or 0 in results:
        sizes = f"{results} results, a window of {window}, {groups} groups"
        return Refused("results_are_fewer_than_taps", sizes, "one group")
    tile = FewResultsTile.of(device, results[-1], apart.strides[-1], apart.dilations[-1])
    if tile is None:
        return Refused("registers_hold_a_line_of_results", f"{results[-1]} results")
    filled = -(-filters // tile.block) * tile.block
    if filled > LIMITS.lanes_waste * filters:
        return Refused("filters_fill_lanes", f"{filled} lanes for {filters} filters")
    return tile


@dataclass(frozen=True, slots=True)
class FewResults:
    """How the work is tiled."""

    problem: ConvProblem
    form: FewResultsForm
    steps: tuple[int, ...]
    """Strides of filters: of a filter, a channel, a row and a column."""

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, tile, images = of.geometry, self.form.tile, known(of.images)
        (height, width), (rows, columns), (lines, results) = geometry.sizes, geometry.window, geometry.out
        seen_rows, pitch = self._seen(of)
        part, taps = self._part(of), known(lines) * known(results)
        whole = rows == 1 or self.steps[2] == columns * self.steps[3]
        runs, run = (1, rows * columns) if whole else (rows, columns)
        piece = max(1, tile.device.caches.l1_room // 2 // (4 * tile.block * columns))
        filter_step, channel_step, row_step, pixel_step = self.steps
        laid = ARGUMENTS.laid_out(
            {
                "images": images, "channels": of.channels, "filters": of.filters, "height": height, "width": width,
                "image_step": of.steps[0], "channel_step": of.steps[1], "row_step": geometry.steps[0],
                "column_step": geometry.steps[1], "above": geometry.before[0], "before": geometry.before[1],
                "rows": rows, "columns": columns, "lines": lines, "results": results,
                "stride_rows": geometry.strides[0], "dilation_rows": geometry.dilations[0],
                "w_filter": filter_step, "w_channel": channel_step, "w_run": row_step, "w_pixel": pixel_step,
                "runs": runs, "run": run, "part": part, "piece": piece, "seen_rows": seen_rows, "pitch": pitch,
            },
            {
                "offsets": 8 * part * known(lines), "sums": 4 * part * taps * tile.block,
                "packed": 4 * rows * columns * tile.block,
                "seen": 4 * (part * seen_rows * pitch + 2 * tile.device.lanes),
            },
        )  # fmt: skip
        work = part * taps * of.channels * rows * columns * tile.block // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, -(-images // part) * -(-of.filters // tile.block), work + 1)

    def _part(self, of: ConvProblem) -> int:
        """Images of a tile: each tile transposes filters, threads have tiles to share, and patches stay in L2."""
        tile, images = self.form.tile, known(of.images)
        blocks, threads = -(-of.filters // tile.block), tile.device.threads
        results = known(of.geometry.out[0]) * known(of.geometry.out[1])
        seen_rows, pitch = self._seen(of)
        most = max(1, min(images, tile.device.caches.l2_room // 2 // (4 * seen_rows * pitch)))

        def time(part: int) -> int:
            tiles = -(-images // part) * blocks
            return -(-tiles // threads) * (part * results + BLOCKS.few_results.turn)

        return min(range(1, most + 1), key=time)

    def _seen(self, of: ConvProblem) -> tuple[int, int]:
        """Rows and columns that the window sees from its first result to its last."""
        geometry = of.geometry
        axes = zip(geometry.window, geometry.dilations, geometry.out, geometry.strides, strict=True)
        rows, columns = [(window - 1) * d + (known(out) - 1) * s + 1 for window, d, out, s in axes]
        return rows, columns

    def cost(self) -> Cost:
        """Vector FMAs, lanes that are empty included, and vectors that are packed for each tile."""
        of, tile, images = self.problem, self.form.tile, known(self.problem.images)
        lanes, blocks = tile.device.lanes, -(-self.problem.filters // tile.block)
        pixels, results = of.geometry.taps, known(of.geometry.out[0]) * known(of.geometry.out[1])
        dense = 2 * lanes * images * results * of.channels * pixels * blocks * tile.vectors
        tiles = -(-images // self._part(of))
        moved = 2 * of.channels * pixels * blocks * (images + tiles * tile.block * BLOCKS.few_results.turn)
        (height, width) = of.geometry.sizes
        seen, weights = 4 * images * of.channels * known(height) * known(width), 4 * of.filters * of.channels * pixels
        return Cost(dense + moved, seen + weights + 4 * images * of.filters * results, weights, dense, "conv")


__all__ = ["FewResults", "few_results", "tile_for"]

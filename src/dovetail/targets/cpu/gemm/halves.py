"""Products with weights that stay in two bytes: a cell is one panel of columns for one block of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, KernelCode
from dovetail.codegen.llvm.once import HEAD as ONCE
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f16
from dovetail.ir.literal import Array
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.halves import HalfProduct, find_half_product
from dovetail.kernels.spec import Job
from dovetail.targets.cpu.gemm.driver import kernel_code, words_bytes
from dovetail.targets.cpu.gemm.half_fast import GROUP, LARGEST, fast_rows_function, rounded_function
from dovetail.targets.cpu.gemm.half_kernel import (
    COLUMNS,
    HEAD,
    STEPS,
    VECTORS,
    HalfKernel,
    row_function,
    rows_function,
    spread_function,
)
from dovetail.targets.cpu.gemm.prepared_rows import Block, PreparedCells, PreparedRows
from dovetail.targets.cpu.gemm.tile import Tile
from dovetail.targets.runtime.aligned import aligned

_PANELS = 64
"""Panels that are scaled at a time."""
NO_LANES = Refused("device_multiplies_by_lane", "no FMA by one lane of a register", "NEON")


def offer_halves(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of products whose weights are all f16, or all bf16."""
    if not of.device.has("fma_by_lane") or of.device.lanes * VECTORS != COLUMNS:
        return NO_LANES
    found = of.once(find_half_product)
    if isinstance(found, Refused):
        return found
    streams = len(found.contraction.streams)
    if VECTORS % streams:
        return Refused("streams_share_a_panel", str(streams), f"a divisor of {VECTORS}")
    rounds = of.locations.is_fast and found.dtype is f16 and of.device.emits("f16_arithmetic")
    tile = Tile(of.device, 1, VECTORS)
    return Offer(lambda: _HalfJob(of, found, tile, may_round=rounds).job(), lambda: found.cost(of.value))


@dataclass(frozen=True, slots=True)
class HalfPanels:
    """Matrices [columns, k] of two bytes as panels [panel, k, NR]; matrices of one panel are side by side."""

    streams: tuple[tuple[int, int], ...]
    """For each stream of columns the right operand that it is in, and its first column."""
    size: int
    """Columns of each stream."""
    counts: tuple[int, ...]
    """How many matrices make up each right operand."""
    is_scaled: bool = False
    """Whether columns are scaled by powers of two, which are before each panel in f32."""

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"halves {COLUMNS} {self.streams} {self.size} {self.counts} {self.is_scaled}"

    def __call__(self, *given: Array) -> Array:
        """Matrices as [panel, k, NR], or as bytes where columns are scaled."""
        if not self.is_scaled:
            return self._panels(given)
        width, deep = COLUMNS // len(self.streams), given[0].shape[1]
        whole = aligned((-(-self.size // width), HEAD + 2 * COLUMNS * deep), np.uint8)
        # Some panels at a time: what they take besides the result is a few megabytes.
        for start in range(0, len(whole), _PANELS):
            onto = whole[start : start + _PANELS]
            first, left = start * width, self.size - start * width
            streams = tuple([(right, column + first) for right, column in self.streams])
            _scale(HalfPanels(streams, min(left, len(onto) * width), self.counts)._panels(given), onto)
        return whole

    def _panels(self, given: Sequence[Array]) -> Array:
        left, width = list(given), COLUMNS // len(self.streams)
        rights = [[left.pop(0) for _ in range(count)] for count in self.counts]
        packed = aligned((-(-self.size // width), given[0].shape[1], COLUMNS), np.uint16)
        if self.size % width:
            packed[-1] = 0
        for stream, (right, first) in enumerate(self.streams):
            at = slice(stream * width, (stream + 1) * width)
            start = 0
            for matrix in rights[right]:
                low, high = max(first, start), min(first + self.size, start + len(matrix))
                if low < high:
                    self._fill(packed[:, :, at], matrix[low - start : high - start].view(np.uint16), low - first)
                start += len(matrix)
        return packed

    @staticmethod
    def _fill(panels: Array, rows: Array, column: int) -> None:
        """Write rows as the columns from one on."""
        width = panels.shape[2]
        ahead = min(-column % width, len(rows))
        whole = (len(rows) - ahead) // width
        if ahead:
            at = column % width
            panels[column // width, :, at : at + ahead] = rows[:ahead].T
        first = (column + ahead) // width
        body = rows[ahead : ahead + whole * width].reshape(whole, width, rows.shape[1])
        # A panel at a time: its rows stay in the cache while they are taken apart.
        for index in range(whole):
            panels[first + index] = body[index].T
        if len(rows) > ahead + whole * width:
            rest = rows[ahead + whole * width :]
            panels[first + whole, :, : len(rest)] = rest.T


def _scale(panels: Array, onto: Array) -> None:
    """Write panels whose columns are scaled by powers of two, with these powers in front."""
    # Magnitudes are in the order of their bits.
    largest = (panels & np.uint16(0x7FFF)).max(axis=1).view(np.float16).astype(np.float32)
    powers = np.ldexp(np.float32(1), np.frexp(largest / np.float32(LARGEST))[1])
    powers[~np.isfinite(largest) | (largest == 0)] = 1
    onto[:, :HEAD].view(np.float32)[:] = powers
    scaled = onto[:, HEAD:].view(np.float16).reshape(panels.shape)
    np.multiply(panels.view(np.float16), 1 / powers[:, None], out=scaled, casting="unsafe")


class _HalfJob(PreparedRows):
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], found: HalfProduct, tile: Tile, *, may_round: bool) -> None:
        super().__init__(of.step, found.contraction, of.locations, tile)
        rounds = may_round and isinstance(self.deep, int) and self.deep % GROUP == 0
        self.product, self.kernel = found, HalfKernel(found.dtype.name, rounds)

    def job(self) -> Job | Refused:
        deep = self.deep
        if not isinstance(deep, int) or deep % STEPS or deep == 0:
            return Refused("rows_are_whole_vectors", str(deep), f"a multiple of {STEPS}")
        pitch = HEAD + -(-4 * deep // HEAD) * HEAD
        pack = partial(HalfPanels, is_scaled=self.kernel.rounds)
        return self.finished(pitch, self.product.matrices, pack, partial(_code, self.kernel), speed=1)


class _Workspace:
    """Offsets in the workspace: words of the epilogue, sums, scaled rows, a row in f32, a panel that is spelled out."""

    def __init__(self, of: Block) -> None:
        self.words = ONCE
        self.sums = -(-(self.words + words_bytes(of.epilogues[0])) // 64) * 64
        self.rows = self.sums + -(-of.rows * of.shape.tile.row_bytes // 64) * 64
        self.row = self.rows + of.rows * of.pitch
        self.panel = self.row + -(-4 * of.deep // 64) * 64
        self.end = self.panel + 4 * COLUMNS * of.deep


def _code(kernel: HalfKernel, of: Block) -> tuple[KernelCode, int]:
    driver = _Driver(kernel, of)
    return kernel_code("halves", driver, driver.shared), driver.at.end


class _Driver(PreparedCells):
    """The function that goes through cells."""

    def __init__(self, kernel: HalfKernel, of: Block) -> None:
        at = _Workspace(of)
        super().__init__(of, at, 2 * COLUMNS * of.deep + (HEAD if kernel.rounds else 0))
        self.kernel, self.panel = kernel, at.panel
        self.row = rounded_function() if kernel.rounds else row_function(kernel)
        self.shared = [self.row]
        self.write()

    def prepare(self, x: Ptr, target: Ptr) -> None:
        _, write = self.row
        self.call(write, x, target, self.problem.deep)

    def multiply(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        """Multiply the rows of the cell with its panel, which many rows spell out first where nothing is rounded."""
        if self.kernel.rounds:
            self._tiles(rows, b, sums, count, self.kernel.tiles, is_spread=False)
            return
        least = self.kernel.least_spread
        few = [tile for tile in self.kernel.tiles if tile < least and tile <= self.problem.rows]
        with self.when(self.icmp("slt", count, least)):
            self._tiles(rows, b, sums, count, few, is_spread=False)
        if self.problem.rows < least:
            return
        with self.when(self.icmp("sge", count, least)):
            spread, panel = spread_function(self.kernel), self.ptr_add(SCRATCH, self.panel)
            self.shared.append(spread)
            self.call(spread[1], b, panel, self.problem.deep)
            self._tiles(rows, panel, sums, count, self.kernel.tiles, is_spread=True)

    def _tiles(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64, tiles: Sequence[int], *, is_spread: bool) -> None:
        """All rows: tiles of the most rows first."""
        stride = self.shape.tile.row_bytes
        done: Int = 0
        for tile in tiles:
            fast = self.kernel.rounds
            found = fast_rows_function(tile) if fast else rows_function(self.kernel, tile, is_spread=is_spread)
            self.shared.append(found)
            end = self.add(done, self.mul(self.udiv(self.sub(count, done), tile), tile))
            with self.loop(done, end, step=tile) as row:
                x, y = self.ptr_add(rows, self.mul(row, self.problem.pitch)), self.ptr_add(sums, self.mul(row, stride))
                self.call(found[1], x, self.problem.pitch, b, y, stride, self.problem.deep)
            done = end


__all__ = ["HalfPanels", "offer_halves"]

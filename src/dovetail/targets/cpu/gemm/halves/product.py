"""Products with weights that stay in two bytes: a cell is one panel of columns for one block of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from dovetail.codegen.llvm.function import Signature
from dovetail.codegen.llvm.handles import I1, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, KernelCode
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f16
from dovetail.ir.literal import Array
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.halves import HalfProduct, find_half_product
from dovetail.kernels.spec import Job, SharedFunction
from dovetail.targets.cpu.gemm.amx.expand import halves_function
from dovetail.targets.cpu.gemm.driver import kernel_code
from dovetail.targets.cpu.gemm.groups import stacked
from dovetail.targets.cpu.gemm.halves.f16 import GROUP, LARGEST, fast_rows_function, rounded_function
from dovetail.targets.cpu.gemm.halves.kernel import (
    HEAD,
    STEPS,
    HalfKernel,
    row_function,
    rows_function,
    spread_function,
)
from dovetail.targets.cpu.gemm.halves.pack import fill, largest
from dovetail.targets.cpu.gemm.policy import AMX, HALF_TILES, HALVES, HalfTile
from dovetail.targets.cpu.gemm.row_panels import Block, Expansion, RowPanelJob, RowPanels, Workspace
from dovetail.targets.cpu.gemm.tile import Tile
from dovetail.targets.runtime.arrays.huge_pages import HUGE_PAGES
from dovetail.targets.runtime.arrays.page_advice import unload

_Multiply: TypeAlias = Callable[[int], tuple[SharedFunction, Signature]]
"""The function that multiplies a tile of rows."""
_PANELS = 64
"""Panels that are written at a time."""
NO_TILE = Refused("device_widens_halves", "no vectors of f16 as f32", "NEON, or AVX2 with F16C")


def half_tile(device: CpuDevice) -> HalfTile | None:
    """The register tiles of a device."""
    by_lane = device.has("fma_by_lane")
    if not by_lane and (device.vector_bits < 256 or not device.has("f16_conversion")):
        return None
    fitting = [row for row in HALF_TILES if row.by_lane == by_lane and device.registers >= row.registers]
    return replace(fitting[0], lanes=device.lanes) if fitting else None


def offer_halves(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of products whose weights are all f16, or all bf16."""
    shape = half_tile(of.device)
    if shape is None:
        return NO_TILE
    product = of.once(find_half_product)
    if isinstance(product, Refused):
        return product
    streams = len(product.contraction.streams)
    if shape.vectors % streams:
        return Refused("streams_share_a_panel", str(streams), f"a divisor of {shape.vectors}")
    rounds = of.locations.is_fast and product.dtype is f16 and of.device.emits("f16_arithmetic")
    tile, kernel = Tile(of.device, 1, shape.vectors), HalfKernel(product.dtype.name, shape)
    return Offer(lambda: _HalfJob(of, product, tile, kernel, may_round=rounds).job(), lambda: product.cost(of.value))


@dataclass(frozen=True, slots=True)
class HalfPanels:
    """Matrices [columns, k] of two bytes as panels [panel, k, NR]; matrices of one panel are side by side."""

    streams: tuple[tuple[int, int], ...]
    """For each stream of columns the right operand that it is in, and its first column."""
    size: int
    """Columns of each stream."""
    counts: tuple[int, ...]
    """How many matrices make up each right operand."""
    columns: int
    """NR."""
    is_scaled: bool = False
    """Whether columns are scaled by powers of two, which are before each panel in f32."""

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"halves {self.columns} {self.streams} {self.size} {self.counts} {self.is_scaled}"

    def __call__(self, *weights: Array) -> Array:
        """Matrices as [panel, k, NR], or as bytes where columns are scaled."""
        packed = HUGE_PAGES.array(self.room(weights[0].shape[1]), self.dtype)
        self.write(packed, *weights)
        return packed

    @property
    def dtype(self) -> type[np.uint16 | np.uint8]:
        """Of packed panels."""
        return np.uint8 if self.is_scaled else np.uint16

    def room(self, deep: int) -> tuple[int, ...]:
        """The shape of the panels of matrices with rows of this size."""
        count = -(-self.size // (self.columns // len(self.streams)))
        return (count, HEAD + 2 * self.columns * deep) if self.is_scaled else (count, deep, self.columns)

    def write(self, packed: Array, *weights: Array) -> None:
        """Write all panels."""
        if not self.is_scaled:
            self._write(weights, packed, None)
            return
        panels = packed[:, HEAD:].view(np.uint16).reshape(len(packed), weights[0].shape[1], self.columns)
        self._write(weights, panels, packed[:, :HEAD].view(np.float32))

    def _write(self, weights: Sequence[Array], panels: Array, powers: Array | None) -> None:
        """Write panels, and the powers of two of their columns."""
        left, width = list(weights), self.columns // len(self.streams)
        rights = [[left.pop(0) for _ in range(count)] for count in self.counts]
        if self.size % width:
            panels[-1] = 0
            if powers is not None:
                powers[-1] = 1
        for stream, (right, first) in enumerate(self.streams):
            at = slice(stream * width, (stream + 1) * width)
            start = 0
            for matrix in rights[right]:
                low, high = max(first, start), min(first + self.size, start + len(matrix))
                if low < high:
                    rows = matrix[low - start : high - start].view(np.uint16)
                    self._fill(panels[:, :, at], None if powers is None else powers[:, at], rows, low - first)
                start += len(matrix)

    @staticmethod
    def _fill(panels: Array, powers: Array | None, rows: Array, column: int) -> None:
        """Write rows as the columns from one on."""
        width = panels.shape[2]
        ahead = min(-column % width, len(rows))
        whole = (len(rows) - ahead) // width
        if ahead:
            at = slice(column % width, column % width + ahead)
            _columns(panels[column // width, :, at], powers, (column // width, at), rows[:ahead])
        first = (column + ahead) // width
        # Some panels at a time: rows stay in the cache from the search for their largest numbers until they are moved.
        for start in range(0, whole, _PANELS):
            some = range(first + start, first + min(start + _PANELS, whole))
            here = slice(some.start, some.stop)
            part = rows[ahead + start * width :][: len(some) * width]
            _panels(panels[here], None if powers is None else powers[here], part)
            # Pages of a mapped file go as they are packed: the largest matrix would be in memory twice.
            unload(part)
        if len(rows) > ahead + whole * width:
            rest = rows[ahead + whole * width :]
            at = slice(0, len(rest))
            _columns(panels[first + whole, :, at], powers, (first + whole, at), rest)


def _panels(panels: Array, powers: Array | None, rows: Array) -> None:
    """Write whole panels."""
    width, factors = panels.shape[2], None
    if powers is not None:
        scales = _powers(rows)
        powers[...] = scales.reshape(powers.shape)
        factors = 1 / scales
    if fill(panels, rows, factors):
        return
    scaled = rows if factors is None else _scaled(rows, factors)
    panels[...] = scaled.reshape(len(panels), width, -1).transpose(0, 2, 1)


def _columns(target: Array, powers: Array | None, at: tuple[int, slice], rows: Array) -> None:
    """Write some columns of a panel."""
    if powers is None:
        target[...] = rows.T
        return
    scales = powers[at] = _powers(rows)
    target[...] = _scaled(rows, 1 / scales).T


def _powers(rows: Array) -> Array:
    """The power of two by which each row is too large."""
    # Magnitudes are in the order of their bits.
    most = largest(rows).view(np.float16).astype(np.float32)
    powers = np.ldexp(np.float32(1), np.frexp(most / np.float32(LARGEST))[1])
    powers[~np.isfinite(most) | (most == 0)] = 1
    return powers


def _scaled(rows: Array, factors: Array) -> Array:
    """Rows of f16 times their factors."""
    return (rows.view(np.float16) * factors[:, None]).astype(np.float16).view(np.uint16)


class _HalfJob(RowPanelJob):
    """The job of one product while it is put together."""

    def __init__(
        self, of: StepProblem[CpuDevice], product: HalfProduct, tile: Tile, kernel: HalfKernel, *, may_round: bool
    ) -> None:
        super().__init__(of.step, product.contraction, of.locations, tile)
        rounds = may_round and isinstance(self.deep, int) and self.deep % GROUP == 0
        self.product, self.kernel = product, replace(kernel, rounds=rounds)

    def job(self) -> Job | Refused:
        deep = self.deep
        if not isinstance(deep, int) or deep % STEPS or deep == 0:
            return Refused("rows_are_whole_vectors", str(deep), f"a multiple of {STEPS}")
        pitch = HEAD + -(-4 * deep // HEAD) * HEAD
        panels = partial(HalfPanels, columns=self.kernel.tile.columns, is_scaled=self.kernel.rounds)
        pack = stacked(panels, self.contraction.ends)
        may_round = (self.locations.is_fast or self.locations.in_bf16) and not self.kernel.rounds
        code = partial(_code, self.kernel)
        return self.finished(pitch, self.product.matrices, pack, code, speed=1, may_round=may_round)

    def rounding(self, *, rounds: bool, on_tiles: bool) -> str:
        return "activations to f16" if self.kernel.rounds else super().rounding(rounds=rounds, on_tiles=on_tiles)


def _code(kernel: HalfKernel, of: Block) -> tuple[KernelCode, int]:
    driver = _Driver(kernel, of)
    return kernel_code("halves", driver, [*driver.shared, *driver.tile_functions]), driver.room


class _Driver(RowPanels):
    """The function that goes through cells."""

    def __init__(self, kernel: HalfKernel, of: Block) -> None:
        self.kernel, self.part = kernel, of.deep
        if not kernel.is_moved:
            room = of.shape.tile.device.caches.l1_room // HALVES.l1_parts // of.shape.tile.row_bytes
            self.part = min(of.deep, max(STEPS, room // STEPS * STEPS))
        at = Workspace(of, of.shape.tile.row_bytes * self.part)
        columns = kernel.tile.columns
        some = AMX.columns if columns % AMX.columns == 0 else columns
        to_tiles = Expansion(partial(halves_function, kernel.name, columns, some), 2, 4 * columns, some, f16.itemsize)
        super().__init__(of, at, 2 * columns * of.deep + (HEAD if kernel.rounds else 0), to_tiles)
        self.row = rounded_function() if kernel.rounds else row_function(kernel)
        self.shared = [self.row]
        self.write()

    def prepare(self, x: Ptr, target: Ptr) -> None:
        _, write = self.row
        self.call(write, x, target, self.problem.deep)

    def multiply(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """Multiply the rows of the cell with its panel, which many rows spell out first where nothing is rounded."""
        if self.kernel.rounds:
            self._tiles(count, self.kernel.tile.rows, fast_rows_function, rows, b, accumulators, self.problem.deep)
            return
        least = self.kernel.tile.least_spread
        few = [tile for tile in self.kernel.tile.rows if tile < least and tile <= self.problem.rows]
        with self.when(self.icmp("slt", count, least)):
            direct = partial(rows_function, self.kernel, is_spread=False)
            self._tiles(count, few, direct, rows, b, accumulators, self.problem.deep, I1("true"), b)
        if self.problem.rows < least:
            return
        with self.when(self.icmp("sge", count, least)):
            self._spread(rows, b, accumulators, count)

    def _spread(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """Multiply KC steps along k at a time, of which all rows read the weights as f32."""
        spread, panel = spread_function(self.kernel), self.ptr_add(SCRATCH, self.at.own)
        self.shared.append(spread)
        multiply = partial(rows_function, self.kernel, is_spread=True)
        with self.loop(0, self.problem.deep, step=self.part) as first:
            some = self.smin(self.part, self.sub(self.problem.deep, first))
            here = self.ptr_add(b, self.mul(first, 2 * self.kernel.tile.columns))
            ahead = self.ptr_add(here, 2 * self.kernel.tile.columns * self.part)
            self.call(spread[1], here, panel, some)
            x = self.ptr_add(rows, self.mul(first, 4))
            fresh = self.icmp("eq", first, 0)
            self._tiles(count, self.kernel.tile.rows, multiply, x, panel, accumulators, some, fresh, ahead)

    def _tiles(
        self,
        count: I64,
        tiles: Sequence[int],
        multiply: _Multiply,
        rows: Ptr,
        b: Ptr,
        accumulators: Ptr,
        *more: Int | I1 | Ptr,
    ) -> None:
        """All rows: tiles of the most rows first."""
        stride = self.shape.tile.row_bytes
        for tile, row in self.in_tiles(tiles, count):
            shared = multiply(tile)
            self.shared.append(shared)
            x, y = (
                self.ptr_add(rows, self.mul(row, self.problem.pitch)),
                self.ptr_add(accumulators, self.mul(row, stride)),
            )
            self.call(shared[1], x, self.problem.pitch, b, y, stride, *more)


__all__ = ["HalfPanels", "half_tile"]

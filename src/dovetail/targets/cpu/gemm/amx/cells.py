"""Cells of many rows on tiles of AMX; few rows take the form of the kernel that they belong to.

Rows of a block are rounded to bf16 once. A part of a panel is expanded to bf16 once for all rows of a cell.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lcm

from dovetail.codegen.llvm.amx import ROW_BYTES, ROWS, STEPS, TILE_BYTES
from dovetail.codegen.llvm.function import Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH
from dovetail.dataclass import dataclass
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.amx.tiles import TileProduct, part_on_tiles, product_function, row_function
from dovetail.targets.cpu.gemm.policy import AMX
from dovetail.targets.cpu.gemm.row_panels import Block, PreparedCells, Workspace


@dataclass(frozen=True, slots=True)
class Expansion:
    """How a packed panel becomes tiles."""

    function: Callable[..., tuple[SharedFunction, Signature]]
    """`(panel, target, count, pitch)` of `count` pieces; it is told whether tiles are emulated."""
    steps: int
    """Steps along k of a piece."""
    bytes: int
    """Of a piece of a packed panel."""
    columns: int
    """Columns of a panel that are expanded at once."""
    apart: int = 0
    """Bytes from a column of a piece to the next, where these are not all columns."""


class TileCells(PreparedCells):
    """The function that goes through cells, of which those of many rows may be on tiles."""

    def __init__(self, problem: Block, at: Workspace, panel_bytes: int, expansion: Expansion) -> None:
        super().__init__(problem, at, panel_bytes)
        self.tile_functions: list[tuple[SharedFunction, Signature]] = []
        self.expansion = expansion
        if not problem.on_tiles:
            return
        device, columns = problem.shape.tile.device, problem.shape.tile.columns
        self.emulated = not device.emits("amx_bf16")
        self.kc = part_on_tiles(device, problem.deep, expansion.columns, lcm(STEPS, expansion.steps))
        self.expanded_at = -(-at.end // 64) * 64
        # What a pass of all rows reads ahead is about the part that follows.
        passes = AMX.rows // (2 * ROWS) * -(-columns // 32)
        lines = max(1, round(STEPS * expansion.bytes / expansion.steps / ROW_BYTES / passes))
        self.lines_ahead = lines
        self.expand = expansion.function(emulated=self.emulated)
        self.rounded = row_function(emulated=self.emulated)
        self.on_tiles = product_function(TileProduct(expansion.columns, lines, AMX.x_ahead, emulated=self.emulated))
        self.tile_functions = [self.expand, self.rounded, self.on_tiles]

    def room(self, end: int) -> int:
        """Bytes of the workspace, of which `end` are those of few rows."""
        if not self.problem.on_tiles:
            return end
        return self.expanded_at + 2 * self.kc * self.expansion.columns

    def prepare_rows(self, start: Ptr, count: I64) -> None:
        if not self.problem.on_tiles:
            super().prepare_rows(start, count)
            return
        many = self.icmp("sge", count, AMX.least)
        with self.when(many):
            self.each_row(start, count, self._round)
        with self.unless(many):
            super().prepare_rows(start, count)

    def products(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        if not self.problem.on_tiles:
            self.multiply(rows, b, sums, count)
            return
        many = self.icmp("sge", count, AMX.least)
        with self.when(many):
            self._on_tiles(rows, b, sums, count)
        with self.unless(many):
            self.multiply(rows, b, sums, count)

    @property
    def strip(self) -> int:
        """Bytes of 16 rows."""
        return self.problem.deep // STEPS * TILE_BYTES

    def _round(self, x: Ptr, row: I64) -> None:
        """Write a row of tiles."""
        at = self.add(self.mul(self.udiv(row, ROWS), self.strip), self.mul(self.urem(row, ROWS), ROW_BYTES))
        self.call(self.rounded[1], x, self.ptr_add(SCRATCH, self.add(at, self.at.rows)), self.problem.deep // STEPS)

    def _on_tiles(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        """All rows with the panel, KC steps along k at a time."""
        deep, expansion, weights = self.problem.deep, self.expansion, self.ptr_add(SCRATCH, self.expanded_at)
        tiles, columns = self.udiv(self.add(count, ROWS - 1), ROWS), self.shape.tile.columns
        with self.loop(0, deep, step=self.kc) as first:
            some = self.smin(self.kc, self.sub(deep, first))
            steps, piece = self.udiv(some, STEPS), self.udiv(first, expansion.steps)
            here = self.ptr_add(b, self.mul(piece, expansion.bytes))
            pieces = self.udiv(some, expansion.steps)
            x = self.ptr_add(rows, self.mul(self.udiv(first, STEPS), TILE_BYTES))
            ahead = self.ptr_add(here, self.mul(pieces, expansion.bytes))
            fresh, stride = self.icmp("eq", first, 0), self.shape.tile.row_bytes
            share = self.mul(self.mul(self.udiv(tiles, 2), steps), ROW_BYTES * self.lines_ahead)
            for number, column in enumerate(range(0, columns, expansion.columns)):
                packed = self.ptr_add(here, expansion.apart * column)
                self.call(self.expand[1], packed, weights, pieces, self.mul(steps, TILE_BYTES))
                y, soon = self.ptr_add(sums, 4 * column), self.ptr_add(ahead, self.mul(share, number))
                self.call(self.on_tiles[1], x, self.strip, weights, y, stride, tiles, steps, fresh, soon)


__all__ = ["Expansion", "TileCells"]

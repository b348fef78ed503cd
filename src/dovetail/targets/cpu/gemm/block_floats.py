"""Products with weights in blocks where f32 is faster than bytes: a cell is one panel for one block of rows.

Devices whose sums of pairs of bytes saturate take nine instructions where f32 takes four.
"""

from __future__ import annotations

from functools import partial

from dovetail.codegen.llvm.function import Signature
from dovetail.codegen.llvm.handles import FALSE, I1, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, KernelCode
from dovetail.codegen.llvm.once import HEAD
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.blocks import BlockProduct
from dovetail.kernels.spec import Job, SharedFunction
from dovetail.targets.cpu.gemm.block_pack import BlockPanels
from dovetail.targets.cpu.gemm.driver import kernel_code, words_bytes
from dovetail.targets.cpu.gemm.float_codes import FloatKernel
from dovetail.targets.cpu.gemm.float_kernel import (
    one_row_function,
    row_function,
    rows_function,
    spell_function,
)
from dovetail.targets.cpu.gemm.float_policy import FLOATS
from dovetail.targets.cpu.gemm.groups import stacked
from dovetail.targets.cpu.gemm.prepared_rows import Block, PreparedCells, PreparedRows
from dovetail.targets.cpu.gemm.tile import Tile


class FloatBlocks(PreparedRows):
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], found: BlockProduct, kernel: FloatKernel) -> None:
        super().__init__(of.step, found.contraction, of.locations, Tile(of.device, 1, kernel.vectors))
        self.product, self.kernel = found, kernel

    def job(self) -> Job | Refused:
        deep, kernel = self.deep, self.kernel
        if not isinstance(deep, int) or deep % kernel.packed.block or deep == 0:
            return Refused("rows_are_whole_blocks", str(deep), f"a multiple of {kernel.packed.block}")
        pitch = -(-deep // kernel.group * kernel.row_bytes // 64) * 64 + 64
        pack = stacked(partial(BlockPanels, kernel.packed), self.found.ends)
        code = partial(_code, kernel)
        return self.finished(pitch, self.product.blocks, pack, code, 1, FLOATS.rows, FLOATS.share)


class _Workspace:
    """Offsets in the workspace: words of the epilogue, sums, rows, a row in f32, spelled blocks."""

    def __init__(self, of: Block, spelled: int) -> None:
        self.words = HEAD
        self.sums = -(-(self.words + words_bytes(of.epilogues[0])) // 64) * 64
        self.rows = self.sums + -(-of.rows * of.shape.tile.row_bytes // 64) * 64
        self.row = self.rows + -(-of.rows_bytes // 64) * 64
        self.spelled = self.row + -(-4 * of.deep // 64) * 64
        self.end = self.spelled + (spelled if of.rows > 1 else 0)


def _code(kernel: FloatKernel, of: Block) -> tuple[KernelCode, int]:
    driver = _Driver(kernel, of)
    return kernel_code("blocks_f32", driver, driver.functions), driver.at.end


class _Driver(PreparedCells):
    """The function that goes through cells."""

    def __init__(self, kernel: FloatKernel, of: Block) -> None:
        packed = kernel.packed
        room = of.shape.tile.device.caches.l1 * FLOATS.l1_share[0] // FLOATS.l1_share[1]
        self.blocks = of.deep // packed.block
        """Of a column."""
        self.piece = kernel.piece(room)
        """Groups of a block that are spelled out at once."""
        most = max(1, room // (self.piece * kernel.spelled_bytes)) if self.piece == packed.groups else 1
        self.part = -(-self.blocks // -(-self.blocks // most))
        """Blocks along k of the part of a panel that is spelled out in L1."""
        at = _Workspace(of, self.part * self.piece * kernel.spelled_bytes)
        super().__init__(of, at, packed.panel_bytes(of.deep))
        self.kernel, self.spelled = kernel, at.spelled
        self.tiles = [rows for rows in FLOATS.tiles if rows <= of.rows]
        self.functions: list[tuple[SharedFunction, Signature]] = [row_function(kernel), one_row_function(kernel)]
        if of.rows > 1:
            self.functions += [spell_function(kernel, first, self.piece) for first in self.pieces]
            self.functions += [rows_function(kernel, rows) for rows in self.tiles]
        self.write()

    @property
    def pieces(self) -> range:
        """First groups of what is spelled out at once."""
        return range(0, self.kernel.packed.groups, self.piece)

    def prepare(self, x: Ptr, target: Ptr) -> None:
        self.call(row_function(self.kernel)[1], x, target, self.problem.deep // self.kernel.group)

    def multiply(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        alone = self.icmp("eq", count, 1)
        with self.when(alone):
            self.call(one_row_function(self.kernel)[1], rows, b, sums, self.blocks)
        if self.problem.rows > 1:
            with self.unless(alone):
                self._multiply_several(rows, b, sums, count)

    def _multiply_several(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        """KC steps along k at a time, of which all rows read the codes as floats."""
        kernel, packed = self.kernel, self.kernel.packed
        spelled = self.ptr_add(SCRATCH, self.spelled)
        with self.loop(0, self.blocks, step=self.part) as first:
            some = self.smin(self.part, self.sub(self.blocks, first))
            here = self.ptr_add(b, self.mul(first, packed.block_bytes))
            x = self.ptr_add(rows, self.mul(first, packed.groups * kernel.row_bytes))
            ahead = self.ptr_add(here, self.mul(some, packed.block_bytes))
            groups = self.mul(some, self.piece)
            for start in self.pieces:
                self.call(spell_function(kernel, start, self.piece)[1], here, spelled, some)
                fresh = FALSE if start else self.icmp("eq", first, 0)
                soon = self.ptr_add(ahead, start * kernel.pace)
                self._tiles(self.ptr_add(x, start * kernel.row_bytes), spelled, sums, count, groups, fresh, soon)

    def _tiles(self, x: Ptr, panel: Ptr, sums: Ptr, count: I64, groups: I64, fresh: I1, ahead: Ptr) -> None:
        """All rows: tiles of the most rows first."""
        stride = self.shape.tile.row_bytes
        done: Int = 0
        for tile in self.tiles:
            end = self.add(done, self.mul(self.udiv(self.sub(count, done), tile), tile))
            with self.loop(done, end, step=tile) as row:
                rows, y = self.ptr_add(x, self.mul(row, self.problem.pitch)), self.ptr_add(sums, self.mul(row, stride))
                multiply = rows_function(self.kernel, tile)[1]
                self.prefetch_rows(row, tile)
                self.call(multiply, rows, self.problem.pitch, panel, y, stride, groups, fresh, ahead)
            done = end


__all__ = ["FloatBlocks"]

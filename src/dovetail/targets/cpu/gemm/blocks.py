"""Products with weights that stay in blocks: a cell is one panel of columns for one block of rows."""

from __future__ import annotations

from functools import partial

from dovetail.codegen.llvm.handles import I1, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import KernelCode
from dovetail.codegen.llvm.once import HEAD
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.blocks import BlockProduct, find_block_product
from dovetail.kernels.spec import Job
from dovetail.targets.cpu.gemm.block_kernel import rows_function
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel, limbs_function
from dovetail.targets.cpu.gemm.block_pack import BlockPanels
from dovetail.targets.cpu.gemm.driver import kernel_code, words_bytes
from dovetail.targets.cpu.gemm.policy import BLOCK_DOTS, BLOCKS, Int8Tile
from dovetail.targets.cpu.gemm.prepared_rows import Block, PreparedCells, PreparedRows
from dovetail.targets.cpu.gemm.tile import Tile

NO_DOT = Refused("device_multiplies_bytes", "no sums of products of bytes", "AVX2, VNNI, or the dot product of NEON")


def block_dot(device: CpuDevice) -> Int8Tile | None:
    """The instruction that multiplies limbs with codes."""
    return next((row for row in BLOCK_DOTS if device.has(row.capability) and row.lanes == device.lanes), None)


def offer_blocks(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of products whose weights are all in blocks of one format."""
    dot = block_dot(of.device)
    if dot is None:
        return NO_DOT
    found = of.once(find_block_product)
    if isinstance(found, Refused):
        return found
    exact, emulated = not of.locations.is_fast, not of.device.emits(dot.capability)
    kernel = BlockKernel.of(found.name, dot, exact=exact, registers=of.device.registers, emulated=emulated)
    streams = len(found.contraction.streams)
    if kernel.vectors % streams:
        return Refused("streams_share_a_panel", str(streams), f"a divisor of {kernel.vectors}")
    tile = Tile(of.device, 1, kernel.vectors)
    return Offer(lambda: _Blocks(of, found, tile, kernel).job(), lambda: found.cost(of.value))


class _Blocks(PreparedRows):
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], found: BlockProduct, tile: Tile, kernel: BlockKernel) -> None:
        super().__init__(of.step, found.contraction, of.locations, tile)
        self.product, self.kernel = found, kernel

    def job(self) -> Job | Refused:
        deep, kernel = self.deep, self.kernel
        if not isinstance(deep, int) or deep % kernel.group or deep == 0:
            return Refused("rows_are_whole_groups", str(deep), f"a multiple of {kernel.group}")
        pitch = deep // kernel.group * kernel.group_bytes
        pack = partial(BlockPanels, kernel.layout)
        return self.finished(pitch, self.product.blocks, pack, partial(_code, kernel), BLOCKS.speed)


class _Workspace:
    """Offsets in the workspace: words of the epilogue, sums, rows as limbs, a row in f32."""

    def __init__(self, of: Block) -> None:
        self.words = HEAD
        self.sums = self.words + words_bytes(of.epilogues[0])
        self.rows = self.sums + of.rows * of.shape.tile.row_bytes
        self.row = self.rows + -(-of.rows * of.pitch // 64) * 64
        self.end = self.row + -(-4 * of.deep // 64) * 64


def _code(kernel: BlockKernel, of: Block) -> tuple[KernelCode, int]:
    driver = _Driver(kernel, of)
    functions = [limbs_function(kernel), *(rows_function(kernel, rows) for rows in driver.tiles)]
    return kernel_code("blocks", driver, functions), driver.at.end


class _Driver(PreparedCells):
    """The function that goes through cells."""

    def __init__(self, kernel: BlockKernel, of: Block) -> None:
        super().__init__(of, _Workspace(of), kernel.layout.panel_bytes(of.deep))
        self.kernel = kernel
        self.tiles = [rows for rows in kernel.tiles if rows <= of.rows]
        """Rows of each tile."""
        self.write()

    def prepare(self, x: Ptr, target: Ptr) -> None:
        _, write = limbs_function(self.kernel)
        self.call(write, x, target, self.problem.deep // self.kernel.group)

    def multiply(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        """Multiply the rows of the cell with its panel, KC steps along k at a time: a part of the panel stays in L1."""
        kernel, groups = self.kernel, self.problem.deep // self.kernel.group
        most = max(1, self.shape.tile.device.caches.l1_room // BLOCKS.l1_parts // kernel.layout.group_bytes)
        parts = -(-groups // most)
        each = -(-groups // parts)
        with self.loop(0, groups, step=each) as first:
            some = self.smin(each, self.sub(groups, first))
            here = self.ptr_add(b, self.mul(first, kernel.layout.group_bytes))
            x = self.ptr_add(rows, self.mul(first, kernel.group_bytes))
            self._multiply_part(x, here, sums, count, some, self.icmp("eq", first, 0))

    def _multiply_part(self, limbs: Ptr, b: Ptr, sums: Ptr, count: I64, groups: I64, fresh: I1) -> None:
        """All rows along one part of k: tiles of the most rows first."""
        stride = self.shape.tile.row_bytes
        done: Int = 0
        for rows in self.tiles:
            _, multiply = rows_function(self.kernel, rows)
            end = self.add(done, self.mul(self.udiv(self.sub(count, done), rows), rows))
            with self.loop(done, end, step=rows) as row:
                x, y = self.ptr_add(limbs, self.mul(row, self.problem.pitch)), self.ptr_add(sums, self.mul(row, stride))
                self.call(multiply, x, self.problem.pitch, b, y, stride, groups, fresh)
            done = end


__all__ = ["block_dot", "offer_blocks"]

"""Products with weights that stay in blocks: a cell is one panel of columns for one block of rows."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.handles import I1, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, KernelCode
from dovetail.codegen.llvm.once import HEAD, once_for
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import f32
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.ir import Kernel, stretched
from dovetail.kernels.problems.blocks import BlockProduct, find_block_product
from dovetail.kernels.spec import Job, Packed, Tiles
from dovetail.targets.cpu.gemm.block_kernel import rows_function
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel, limbs_function
from dovetail.targets.cpu.gemm.block_pack import BlockPanels
from dovetail.targets.cpu.gemm.driver import Cells, Shape, Source, kernel_code, words_bytes
from dovetail.targets.cpu.gemm.policy import BLOCK_DOTS, BLOCKS, Int8Tile
from dovetail.targets.cpu.gemm.tile import Tile
from dovetail.targets.cpu.gemm.writer import Writer

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


class _Blocks(Writer):
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], found: BlockProduct, tile: Tile, kernel: BlockKernel) -> None:
        super().__init__(of.step, found.contraction, of.locations, tile)
        self.product, self.kernel = found, kernel

    def job(self) -> Job | Refused:
        deep = self.deep
        if not isinstance(deep, int) or deep % self.kernel.group or deep == 0:
            return Refused("rows_are_whole_groups", str(deep), f"a multiple of {self.kernel.group}")
        stride = self.point_left()
        self._panels()
        operands = self.operands()
        self.point_results()
        count, batch = self.fold()
        pitch = deep // self.kernel.group * self.kernel.group_bytes
        block = max(1, min(BLOCKS.rows, self.tile.device.caches.l2_room * BLOCKS.share[0] // BLOCKS.share[1] // pitch))
        block = max(1, min(block, count)) if isinstance(count, int) else block
        blocks = (count + (block - 1)) // block
        epilogues = self.epilogues()
        left = self.found.left
        source = None if left.dtype is f32 and stride == f32.itemsize else Source("a", left.dtype)
        self.sizes |= {"rows": count, "blocks": blocks, "a_k": stride}
        code = _code(self.shape(operands, batch), self.kernel, deep, block, source, epilogues)
        scratch = _Layout(epilogues[0], self.tile, block, pitch, deep).end
        template = code.template(self.bindings, tuple(self.sizes.values()), scratch)
        tiles = product(batch) * blocks * self.panels
        return Job(template, self.bindings, Tiles(tiles, self._work(count)))

    def _work(self, count: Size) -> Size:
        assert isinstance(self.deep, int), "checked before"
        return count * self.deep * self.tile.columns // BLOCKS.speed

    def _panels(self) -> None:
        of = self.product
        streams = tuple([(i, _known(first)) for i, first in self.found.streams])
        pack = BlockPanels(self.kernel.layout, streams, _known(self.sizes["columns"]), tuple(map(len, of.blocks)))
        first, *others = [blocks for right in of.blocks for blocks in right]
        self.bindings["b0"] = Packed(first, pack.layout, pack, tuple(others))
        self.fronts["b0"] = (*stretched((), (), self.found.result.shape[:-2]), 0)


class _Layout:
    """Offsets in the workspace: words of the epilogue, sums, rows as limbs, a row in f32."""

    def __init__(self, epilogue: Kernel, tile: Tile, block: int, pitch: int, deep: int) -> None:
        self.words = HEAD
        self.sums = self.words + words_bytes(epilogue)
        self.limbs = self.sums + block * tile.row_bytes
        self.row = self.limbs + -(-block * pitch // 64) * 64
        self.end = self.row + -(-4 * deep // 64) * 64


def _code(
    shape: Shape, kernel: BlockKernel, deep: int, block: int, source: Source | None, epilogues: Sequence[Kernel]
) -> KernelCode:
    driver = _Driver(shape, kernel, deep, block, source, epilogues)
    return kernel_code(
        "blocks", driver, [limbs_function(kernel), *(rows_function(kernel, rows) for rows in driver.tiles)]
    )


class _Driver(Cells):
    """The function that goes through cells."""

    def __init__(
        self,
        shape: Shape,
        kernel: BlockKernel,
        deep: int,
        block: int,
        source: Source | None,
        epilogues: Sequence[Kernel],
    ) -> None:
        super().__init__(shape, epilogues)
        self.kernel, self.deep, self.height, self.source = kernel, deep, block, source
        self.pitch = deep // kernel.group * kernel.group_bytes
        self.tiles = [rows for rows in kernel.tiles if rows <= block]
        """Rows of each tile."""
        self.at = _Layout(epilogues[0], shape.tile, block, self.pitch, deep)
        with self.loop(BEGIN, END) as cell:
            self._cell(cell)

    def _cell(self, cell: I64) -> None:
        shape, tile = self.shape, self.shape.tile
        panel, number = self.urem(cell, self.size("panels")), self.udiv(cell, self.size("panels"))
        block, matrix = number, number
        if shape.batch:
            block, matrix = self.urem(number, self.size("blocks")), self.udiv(number, self.size("blocks"))
        offsets = self.offsets(matrix)
        first = self.mul(block, self.height)
        count = self.smin(self.height, self.sub(self.size("rows"), first))
        width = tile.columns // shape.streams
        column = self.mul(panel, width)
        columns = self.smin(width, self.sub(self.size("columns"), column))
        with self.when(once_for(self, SCRATCH, 0, number)):
            self._limbs(first, count, offsets)
        b = self.ptr_add(self.pointer("b0"), self.mul(panel, self.kernel.layout.panel_bytes(self.deep)))
        sums, limbs = (self.ptr_add(SCRATCH, at) for at in (self.at.sums, self.at.limbs))
        self.prefetch_operands(first, column, count, offsets)
        self._multiply(limbs, b, sums, count)
        words = self.ptr_add(SCRATCH, self.at.words)
        self.words(sums, first, column, columns, offsets, words)
        epilogue = self.epilogue_of(columns)
        self.emit(f"call void {epilogue}(ptr {words}, i64 0, i64 {count}, ptr null)")

    def _multiply(self, limbs: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        """Multiply the rows of the cell with its panel, KC steps along k at a time: a part of the panel stays in L1."""
        kernel, groups = self.kernel, self.deep // self.kernel.group
        most = max(1, self.shape.tile.device.caches.l1_room // BLOCKS.l1_parts // kernel.layout.group_bytes)
        parts = -(-groups // most)
        each = -(-groups // parts)
        with self.loop(0, groups, step=each) as first:
            some = self.smin(each, self.sub(groups, first))
            here = self.ptr_add(b, self.mul(first, kernel.layout.group_bytes))
            x = self.ptr_add(limbs, self.mul(first, kernel.group_bytes))
            self._multiply_part(x, here, sums, count, some, self.icmp("eq", first, 0))

    def _multiply_part(self, limbs: Ptr, b: Ptr, sums: Ptr, count: I64, groups: I64, fresh: I1) -> None:
        """All rows along one part of k: tiles of the most rows first."""
        stride = self.shape.tile.row_bytes
        done: Int = 0
        for rows in self.tiles:
            _, multiply = rows_function(self.kernel, rows)
            end = self.add(done, self.mul(self.udiv(self.sub(count, done), rows), rows))
            with self.loop(done, end, step=rows) as row:
                x, y = self.ptr_add(limbs, self.mul(row, self.pitch)), self.ptr_add(sums, self.mul(row, stride))
                self.call(multiply, x, self.pitch, b, y, stride, groups, fresh)
            done = end

    def _limbs(self, first: I64, count: I64, offsets: dict[str, I64]) -> None:
        """The rows of a block as limbs."""
        stride = self.size("a_row")
        start = self.ptr_add(self.ptr_add(self.pointer("a"), offsets["a"]), self.mul(first, stride))
        _, write = limbs_function(self.kernel)
        with self.loop(0, count) as row:
            x = self.ptr_add(start, self.mul(row, stride))
            if self.source is not None:
                copy = self.ptr_add(SCRATCH, self.at.row)
                with self.loop(0, self.deep) as k:
                    self.copy_element(self.source.dtype, self.ptr_add(x, self.mul(k, self.size("a_k"))), copy, k)
                x = copy
            target = self.ptr_add(SCRATCH, self.add(self.mul(row, self.pitch), self.at.limbs))
            self.call(write, x, target, self.deep // self.kernel.group)


def _known(size: Size) -> int:
    assert isinstance(size, int), "what is known before a run has known sizes"
    return size


__all__ = ["block_dot", "offer_blocks"]

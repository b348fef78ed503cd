"""Products with weights that stay in blocks: a cell is one panel of columns for one block of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dovetail.codegen.llvm.handles import I1, I64, TRUE, Int, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, KernelCode
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.blocks import BlockProduct, find_block_product
from dovetail.kernels.spec import Job
from dovetail.targets.cpu.gemm.amx.expand import blocks_function as to_tiles_function
from dovetail.targets.cpu.gemm.blocks.floats import FloatBlocks, FloatKernel
from dovetail.targets.cpu.gemm.blocks.kernel import LINE, BlockKernel, block_dot, is_in_floats
from dovetail.targets.cpu.gemm.blocks.limbs import limbs_function, lows_function, sums_bytes, sums_function
from dovetail.targets.cpu.gemm.blocks.pack import BlockPanels
from dovetail.targets.cpu.gemm.blocks.schedule import blocks_function, few_rows, panel_function, prefetches_rows
from dovetail.targets.cpu.gemm.blocks.unpack import expand_function
from dovetail.targets.cpu.gemm.driver import kernel_code
from dovetail.targets.cpu.gemm.groups import stacked
from dovetail.targets.cpu.gemm.policy import BLOCKS
from dovetail.targets.cpu.gemm.row_panels import Block, Expansion, RowPanelJob, RowPanels, Workspace
from dovetail.targets.cpu.gemm.tile import Tile

NO_PRODUCTS = Refused("device_multiplies_and_adds", "neither sums of products of bytes nor FMA", "AVX2, or NEON")

BANK = 16
"""Bytes at one place of a cache line: a Neoverse N1 loads from two places in a cycle, but not twice from one."""


def offer_blocks(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of products whose weights are all in blocks of one format."""
    dot = block_dot(of.device)
    if dot is None and not of.device.has("fma_by_lane"):
        return NO_PRODUCTS
    product = of.once(find_block_product)
    if isinstance(product, Refused):
        return product
    streams, exact = len(product.contraction.streams), not of.locations.is_fast
    if dot is None or is_in_floats(product.name, dot, exact=exact):
        floats = FloatKernel.of(product.name, of.device)
        if floats.vectors % streams:
            return _no_panel(streams, floats.vectors)
        return Offer(lambda: FloatBlocks(of, product, floats).job(), lambda: product.cost(of.value))
    emulated = not of.device.emits(dot.capability)
    kernel = BlockKernel.of(product.name, dot, exact=exact, registers=of.device.registers, emulated=emulated)
    if kernel.vectors % streams:
        return _no_panel(streams, kernel.vectors)
    tile = Tile(of.device, 1, kernel.vectors)
    return Offer(lambda: _Blocks(of, product, tile, kernel).job(), lambda: product.cost(of.value))


def _no_panel(streams: int, vectors: int) -> Refused:
    return Refused("streams_share_a_panel", str(streams), f"a divisor of {vectors}")


def reads_blocks(kernel: BlockKernel) -> bool:
    """Whether few rows read blocks as they are; spelled out in plain vector code, that would take long to compile."""
    return not kernel.emulated


class _Blocks(RowPanelJob):
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], product: BlockProduct, tile: Tile, kernel: BlockKernel) -> None:
        super().__init__(of.step, product.contraction, of.locations, tile)
        self.product, self.kernel = product, kernel

    def job(self) -> Job | Refused:
        deep, kernel = self.deep, self.kernel
        if not isinstance(deep, int) or deep % kernel.packed.block or deep == 0:
            return Refused("rows_are_whole_blocks", str(deep), f"a multiple of {kernel.packed.block}")
        pitch = deep // kernel.group * kernel.group_bytes
        if kernel.lows_apart:
            pitch += deep // kernel.packed.block * sums_bytes(kernel)
        if kernel.dot.by_lane and pitch % LINE == 0:
            # Limbs of neighbouring rows are loaded together.
            pitch += BANK
        # Where nothing is expanded for all rows of a block, few of them stay in L1 from panel to panel.
        rows, share = BLOCKS.rows, BLOCKS.share
        if kernel.dot.by_lane and kernel.for_many.layout.is_expanded:
            rows, share = BLOCKS.rows_in_l2, BLOCKS.prefetched_share
        elif kernel.dot.by_lane:
            rows = BLOCKS.rows_in_l1
        pack = stacked(partial(BlockPanels, kernel.packed), self.contraction.ends)
        code, may_round = partial(_code, kernel), self.locations.is_fast or self.locations.in_bf16
        return self.finished(pitch, self.product.blocks, pack, code, BLOCKS.speed, rows, share, may_round=may_round)

    def rounding(self, *, rounds: bool, on_tiles: bool) -> str:
        many = super().rounding(rounds=rounds, on_tiles=on_tiles)
        return ", ".join(filter(None, ["activations to bytes" if self.locations.is_fast else "", many]))


def _code(kernel: BlockKernel, of: Block) -> tuple[KernelCode, int]:
    driver = _Driver(kernel, of)
    functions = [limbs_function(kernel)]
    for each in dict.fromkeys((kernel, driver.many)):
        functions += [panel_function(each, rows) for rows in driver.tiles]
    if driver.many.layout.is_expanded:
        functions.append(expand_function(kernel.packed, kernel.dot.lanes))
    if driver.is_direct:
        functions += [blocks_function(kernel, rows) for rows in (1, *driver.few)]
    if kernel.lows_apart:
        functions += [sums_function(kernel), lows_function(kernel)]
    return kernel_code("blocks", driver, [*functions, *driver.tile_functions]), driver.room


class _Driver(RowPanels):
    """The function that goes through cells."""

    def __init__(self, kernel: BlockKernel, of: Block) -> None:
        packed, caches = kernel.packed, of.shape.tile.device.caches
        room = caches.l1_room // BLOCKS.l1_parts
        if kernel.sums_are_scaled:
            room = max(room, min(caches.l1 * BLOCKS.fast_share[0] // BLOCKS.fast_share[1], caches.l1_room))
        self.many = kernel.for_many if of.rows >= BLOCKS.least_expanded else kernel
        """The kernel of many rows."""
        most = max(1, room // (packed.groups * self.many.layout.group_bytes))
        blocks = of.deep // packed.block
        self.part = -(-blocks // -(-blocks // most))
        """Blocks along k of the part of a panel that stays in L1."""
        self.is_direct = kernel.layout.is_expanded and reads_blocks(kernel)
        """Whether one row reads blocks as they are."""
        self.few = few_rows(kernel, of.rows) if self.is_direct else ()
        """Rows that do so in one tile."""
        is_expanded = self.many.layout.is_expanded
        expanded = self.part * packed.groups * self.many.layout.group_bytes if is_expanded else 0
        to_tiles = Expansion(partial(to_tiles_function, packed), packed.block, packed.block_bytes, packed.columns)
        super().__init__(of, Workspace(of, expanded), packed.panel_bytes(of.deep), to_tiles)
        self.kernel = kernel
        self.tiles = [rows for rows in kernel.tiles if rows <= of.rows]
        """Rows of each tile."""
        self.write()

    def prepare(self, x: Ptr, target: Ptr) -> None:
        _, write = limbs_function(self.kernel)
        self.call(write, x, target, self.problem.deep // self.kernel.group)
        if self.kernel.lows_apart:
            self.call(sums_function(self.kernel)[1], target, self.ptr_add(target, self.sums_at), self.blocks)

    def multiply(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """Multiply the rows of the cell with its panel, KC steps along k at a time: a part of the panel stays in L1."""
        self._products(rows, b, accumulators, count)
        if not self.is_direct:
            self._take_lows(rows, b, accumulators, count)

    def _take_lows(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        if self.kernel.lows_apart:
            of, stride = self.problem, self.shape.tile.row_bytes
            limbs = self.ptr_add(rows, self.sums_at)
            self.call(lows_function(self.kernel)[1], limbs, of.pitch, b, accumulators, stride, self.blocks, count)

    @property
    def blocks(self) -> int:
        """Of a column."""
        return self.problem.deep // self.kernel.packed.block

    @property
    def sums_at(self) -> int:
        """Bytes of a row's limbs before the sums of its groups."""
        return self.problem.deep // self.kernel.group * self.kernel.group_bytes

    def _products(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        if self.many is not self.kernel:
            is_many = self.icmp("sge", count, BLOCKS.least_expanded)
            for kernel, condition in ((self.many, is_many), (self.kernel, self.not_(is_many))):
                with self.when(condition):
                    self._multiply_all(kernel, rows, b, accumulators, count)
            return
        if not self.is_direct:
            self._multiply_all(self.kernel, rows, b, accumulators, count)
            return
        alone = self.icmp("eq", count, 1)
        with self.when(alone):
            lows = [self.ptr_add(rows, self.sums_at)] if self.kernel.sums_apart else []
            self.call(blocks_function(self.kernel, 1)[1], rows, b, accumulators, self.blocks, *lows)
            if not self.kernel.sums_apart:
                self._take_lows(rows, b, accumulators, count)
        if self.problem.rows > 1:
            with self.unless(alone):
                self._multiply_several(rows, b, accumulators, count)
                self._take_lows(rows, b, accumulators, count)

    def _multiply_several(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """Few rows read blocks as they are, too, where their tile unpacks them among its products."""
        are_more = TRUE
        for few in self.few:
            are_few = self.icmp("eq", count, few)
            are_more = self.and_(are_more, self.not_(are_few))
            with self.when(are_few):
                self.prefetch_rows(I64("0"), few)
                multiply, stride = blocks_function(self.kernel, few)[1], self.shape.tile.row_bytes
                self.call(multiply, rows, self.problem.pitch, b, accumulators, stride, self.blocks)
        with self.when(are_more):
            self._multiply_all(self.kernel, rows, b, accumulators, count)

    def _multiply_all(self, kernel: BlockKernel, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        packed, blocks = kernel.packed, self.blocks
        part: Int = self.part
        if kernel.reads_once:
            # Three rows are two tiles.
            is_tile = self.icmp("eq", self.urem(kernel.reads_once, count), 0)
            part = self.select_int(is_tile, blocks, part)
        with self.loop(0, blocks, step=part) as first:
            some = self.smin(part, self.sub(blocks, first))
            here = self.ptr_add(b, self.mul(first, packed.block_bytes))
            ahead = self.ptr_add(here, self.mul(some, packed.block_bytes))
            if kernel.layout.is_expanded:
                expanded = self.ptr_add(SCRATCH, self.at.own)
                self.call(expand_function(packed, kernel.dot.lanes)[1], here, expanded, some)
                here = expanded
            x = self.ptr_add(rows, self.mul(first, packed.groups * kernel.group_bytes))
            groups = self.mul(some, packed.groups)
            self._multiply_part(kernel, x, here, accumulators, count, groups, self.icmp("eq", first, 0), ahead)

    def _multiply_part(
        self, kernel: BlockKernel, limbs: Ptr, b: Ptr, accumulators: Ptr, count: I64, groups: I64, fresh: I1, ahead: Ptr
    ) -> None:
        """All rows along one part of k; `ahead` is the part of the panel that follows, as it is packed."""
        many = kernel.many_tiles
        if self.problem.rows < BLOCKS.many_rows or many == kernel.tiles:
            self._tiles(kernel, self.tiles, limbs, b, accumulators, count, groups, fresh, ahead)
            return
        is_many = self.icmp("sge", count, BLOCKS.many_rows)
        for tiles, condition in ((many, is_many), (self.tiles, self.not_(is_many))):
            with self.when(condition):
                self._tiles(kernel, tiles, limbs, b, accumulators, count, groups, fresh, ahead)

    def _tiles(
        self, kernel: BlockKernel, tiles: Sequence[int], limbs: Ptr, b: Ptr, accumulators: Ptr, count: I64, groups: I64,
        fresh: I1, ahead: Ptr,
    ) -> None:  # fmt: skip
        """Tiles of the most rows first."""
        stride = self.shape.tile.row_bytes
        for rows, row in self.in_tiles(tiles, count):
            x, y = (
                self.ptr_add(limbs, self.mul(row, self.problem.pitch)),
                self.ptr_add(accumulators, self.mul(row, stride)),
            )
            if rows > 1:
                self.prefetch_rows(row, rows)
            if kernel.dot.by_lane and kernel.layout.is_expanded:
                self._prefetch_share(rows, row, ahead)
            also = [self.ptr_add(ahead, BLOCKS.wide_distance)] if kernel.prefetches_packed else []
            if prefetches_rows(kernel, rows):
                # After the last tile the first one is multiplied with another part of a panel.
                is_whole = self.icmp("sle", self.add(row, 2 * rows), count)
                also = [self.select_ptr(is_whole, self.ptr_add(x, rows * self.problem.pitch), limbs)]
            _, multiply = panel_function(kernel, rows)
            self.call(multiply, x, self.problem.pitch, b, y, stride, groups, fresh, *also)

    def _prefetch_share(self, rows: int, row: I64, ahead: Ptr) -> None:
        """Prefetch a tile's share of what is expanded next."""
        share = self.part * self.kernel.packed.block_bytes * rows // self.problem.rows
        here = self.ptr_add(ahead, self.mul(self.udiv(row, rows), share))
        for line in range(0, share, LINE):
            self.prefetch(self.ptr_add(here, line), level=2)


__all__ = ["offer_blocks"]

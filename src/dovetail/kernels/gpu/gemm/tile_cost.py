"""Estimates of GEMMs on tiles, in cycles of a multiprocessor, by the figures of the device (`GemmTimings`)."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import f16
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import BlockTile
from dovetail.kernels.matrix_instruction import LINE_BYTES
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.timings.record import GemmTimings

ROWS = 512
"""Rows of a product whose size is known at run time only."""
NARROW_SUMS = 96
"""Accumulators of a thread up to which it puts results of 16 bits through shared memory."""
STEP_BYTES = 32
"""Of k, which mma.sync multiplies at once."""


@dataclass(frozen=True, slots=True)
class Work:
    """A product on a device, as estimates see it."""

    count: int
    down: int
    across: int
    device: GpuDevice
    request: Request = LAUNCH
    itemsize: int = f16.itemsize
    """Bytes of an element of the factors."""

    @staticmethod
    def of(
        batch: Size,
        rows: Size,
        columns: Size,
        streams: int,
        device: GpuDevice,
        request: Request = LAUNCH,
        itemsize: int = f16.itemsize,
    ) -> Work:
        count = batch if isinstance(batch, int) else 1
        down = rows if isinstance(rows, int) else ROWS
        across = streams * (columns if isinstance(columns, int) else ROWS)
        return Work(count, down, across, device, request, itemsize)

    @property
    def timings(self) -> GemmTimings:
        return self.device.timings.gemm

    @property
    def depth(self) -> int:
        """Elements of k in a stage."""
        return LINE_BYTES // self.itemsize

    @property
    def pace(self) -> float:
        """How much longer products take than those of elements of 16 bits."""
        return self.itemsize / f16.itemsize

    def blocks(self, tile: BlockTile) -> int:
        return self.count * -(-self.down // tile.rows) * -(-self.across // tile.columns)

    def may_crowd(self, tile: BlockTile, parts: int) -> bool:
        """Whether two blocks may share a multiprocessor while others have none: they start where blocks of the kernel
        before leave room."""
        few = parts * self.blocks(tile) <= self.device.multiprocessors
        return self.request.starts_early and tile.blocks > 1 and few

    def gains_by_clusters(self, tile: BlockTile, depth: int, parts: int) -> bool:
        """Whether blocks are faster that copy columns for each other.

        Nearly all multiprocessors have one, so that copies from L2 are slow, and none has more, so that no block waits
        for one that still writes results. Stages that are full before rows are there gain nothing.
        """
        blocks, most = parts * self.blocks(tile), self.device.multiprocessors
        t = self.timings
        copies = (tile.rows + tile.columns) * self.itemsize * (1 / t.tma_bytes)
        if tile.blocks > 1 or copies < t.clustered_pace * tile.rows * tile.columns / t.warpgroup_products:
            return False
        return t.clustered_share * most < blocks <= most and depth > tile.stages * self.depth * parts

    def stage_cycles(self, tile: BlockTile, parts: int) -> float:
        """Cycles of a stage of all blocks."""
        blocks = parts * self.blocks(tile)
        # Blocks of a part take turns.
        fit = tile.resident(self.device) if self.request.is_launch else 1
        # Blocks of one multiprocessor share its tensor cores, and hide each other's latency.
        at_once = -(-blocks // self.device.multiprocessors)
        t = self.timings
        rate = t.warpgroup_products if tile.by_warpgroup else t.warp_products
        products = tile.rows * tile.columns * self.depth / rate * self.pace
        work = max(products, (tile.rows + tile.columns) * LINE_BYTES * (1 / t.copied_bytes))
        fragments = 1 if tile.by_warpgroup else tile.warp_rows // 16 * tile.warp_columns // 8
        steps = LINE_BYTES // STEP_BYTES // tile.warps_deep
        latency = t.stage + steps * (t.step + t.fragment * fragments)
        return max(at_once * work, -(-at_once // fit) * latency) + at_once * work / 8

    def product_cycles(self, tile: BlockTile, depth: int, straddle: tuple[bool, bool] = (False, False)) -> float:
        """Cycles of a whole product, most of which have no operand for each row in their epilogue.

        `straddle` says of the left and the right factors whether their lines begin in the middle of a line of L2.
        """
        t = self.timings
        tiles = -(-self.blocks(tile) // self.device.multiprocessors)
        busy = min(1.0, self.blocks(tile) / self.device.multiprocessors)
        fits_l2 = (self.down + self.across) * depth * self.itemsize <= self.device.l2_bytes
        whole = 1 / (t.lone_tma_bytes if fits_l2 else t.far_tma_bytes)
        left, right = (max(whole, busy * (1 / t.straddling_tma_bytes)) if each else whole for each in straddle)
        copies = (tile.rows * left + tile.columns * right) * LINE_BYTES
        products = tile.rows * tile.columns * self.depth / t.warpgroup_products
        is_narrow = tile.rows * tile.columns // tile.threads <= NARROW_SUMS
        results = tile.rows * tile.columns * (1 / (t.narrow_results if is_narrow else t.wide_results))
        k_steps = -(-depth // self.depth) * max(products, copies, t.k_step)
        # Blocks of one multiprocessor hide each other's results.
        return t.start + tiles * k_steps + -(-tiles // tile.blocks) * results

    def pipelined_cycles(
        self,
        tile: BlockTile,
        depth: int,
        parts: int = 1,
        result_bytes: int = 0,
        *,
        shares_l2: bool = False,
    ) -> float:
        """Cycles of a kernel whose producer runs ahead: the start, products or copies, and results.

        Those that do not fit L2 take the time of memory, while other blocks of a multiprocessor multiply. With
        `shares_l2`, copies are faster where fewer multiprocessors have work.
        """
        t = self.timings
        blocks = parts * self.blocks(tile)
        tiles = -(-blocks // self.device.multiprocessors)
        products = tile.rows * tile.columns * self.depth / t.warpgroup_products
        busy = min(1.0, blocks / self.device.multiprocessors) if shares_l2 else 1.0
        copies = (tile.rows + tile.columns) * LINE_BYTES * max(1 / t.tma_bytes * busy, 1 / t.lone_tma_bytes)
        results = tile.rows * tile.columns * (1 / t.results)
        # Blocks of one multiprocessor hide each other's results.
        shown = tiles if tile.blocks == 1 else -(-tiles // tile.blocks)
        k_steps = -(-depth // (self.depth * parts)) * max(products, copies, t.k_step)
        if self.down * self.across * result_bytes <= self.device.l2_bytes // 2:
            return t.start + tiles * k_steps + shown * results
        memory = tile.rows * tile.columns * result_bytes * (1 / t.memory_bytes)
        if tile.blocks == 1:
            return t.start + tiles * (k_steps + max(results, memory))
        shorter, longer = sorted((tiles * k_steps + shown * results, tiles * memory + k_steps))
        return t.start + longer + shorter / 8

    def adding_cycles(self, parts: int) -> float:
        """Cycles to add up the parts of a product, by whatever does that; 0 for one part."""
        cycles = self.request.sum_cycles_on(self.device)
        return 0.0 if parts == 1 else cycles + (parts - 2) * self.timings.split + self.sum_cycles(parts)

    def adding_cycles_of_producers(self, parts: int) -> float:
        """The same for parts that blocks with a producer compute."""
        if parts == 1:
            return 0.0
        t, cycles = self.timings, self.request.sum_cycles_on(self.device)
        return cycles + t.producer_sum + (parts - 2) * t.producer_split + self.sum_cycles(parts)

    def sum_cycles(self, parts: int) -> float:
        """Cycles to write and read the sums of all parts."""
        nbytes = 2 * 4 * parts * self.count * self.down * self.across
        return nbytes * (1 / self.timings.copied_bytes) / self.device.multiprocessors


__all__ = ["NARROW_SUMS", "Work"]

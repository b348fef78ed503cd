"""Estimates of products on tiles: cycles of a multiprocessor, fitted to an H200."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import f16
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import BlockTile
from dovetail.kernels.matrix_instruction import LINE_BYTES

ROWS = 512
"""Rows of a product whose size is known at run time only."""
MULTIPLY_CYCLES, GROUP_CYCLES, COPY_CYCLES = 1 / 1024, 1 / 2048, 1 / 40
"""Cycles of a multiprocessor for a product of two elements, by warps and by warpgroups, and for a byte copied."""
START_CYCLES, ROUND_CYCLES, BOX_CYCLES, RESULT_CYCLES = 2000, 140, 1 / 40, 1 / 10
"""Cycles before the first stage is full, of a small stage, for a byte that the TMA copies, for a result."""
NARROW_SUMS, NARROW_CYCLES, WIDE_CYCLES = 96, 1 / 14, 1 / 7
"""Sums of a thread up to which it puts results of 16 bits through shared memory, and cycles for a result of a product
that does, or that puts sums there."""
LONE_BOX_CYCLES = 1 / 64
"""Cycles for a byte that the TMA copies to one multiprocessor. All of them together are slower with convolutions and
with parts of k, but not with whole products: by 31 of these, with 14 tiles each."""
FAR_BOX_CYCLES, STRADDLING_CYCLES = 1 / 52, 1 / 24
"""The same where factors do not fit L2, by 4096×4096→4096, and, on all of them together, where lines begin in the
middle of a line of L2, by 1000×1000→1000."""
MEMORY_CYCLES = 1 / 17
"""Cycles of a multiprocessor for its share of a byte in memory."""
CLUSTERED_SHARE, CLUSTERED_PACE = 7 / 8, 1.5
"""The share of multiprocessors with a tile from which clusters copy columns, as 128 of 132 gain and 96 do not, and how
much longer copies then take than products, as tiles of 128×192 gain nothing."""
STEP_BYTES = 32
"""Of k, which mma.sync multiplies at once."""
STAGE_CYCLES, STEP_CYCLES, FRAGMENT_CYCLES = 180, 40, 4
"""Latency of a stage, of each 32 bytes of k in it, and of each 16×8 product of a warp."""
SUM_CYCLES = 4000
"""Cycles for a second kernel, which adds up the parts."""
JOINED_CYCLES, PART_CYCLES = 50, 700
"""Cycles for a kernel that runs anyway to add them up as well, and for each part more than two that it loads."""
PRODUCER_CYCLES, PRODUCER_PART_CYCLES = 550, 400
"""The same after blocks with a producer: a kernel that reads f32 sums begins a quarter of a microsecond later than one
that reads results, and each part more than two. By MiniLM 1×128: out products whole, down products in 2, 3 and 4."""


@dataclass(frozen=True, slots=True)
class Work:
    """A product on a device, as estimates see it."""

    count: int
    down: int
    across: int
    device: GpuDevice
    itemsize: int = f16.itemsize
    """Bytes of an element of the factors."""

    @staticmethod
    def of(
        batch: Size, rows: Size, columns: Size, streams: int, device: GpuDevice, itemsize: int = f16.itemsize
    ) -> Work:
        count = batch if isinstance(batch, int) else 1
        down = rows if isinstance(rows, int) else ROWS
        across = streams * (columns if isinstance(columns, int) else ROWS)
        return Work(count, down, across, device, itemsize)

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
        return self.device.dependent_launches and tile.blocks > 1 and few

    def gains_by_clusters(self, tile: BlockTile, depth: int, parts: int) -> bool:
        """Whether blocks are faster that copy columns for each other.

        Nearly all multiprocessors have one, so that copies from L2 are slow, and none has more, so that no block waits
        for one that still writes results. Stages that are full before rows are there gain nothing.
        """
        blocks, most = parts * self.blocks(tile), self.device.multiprocessors
        copies = (tile.rows + tile.columns) * self.itemsize * BOX_CYCLES
        if tile.blocks > 1 or copies < CLUSTERED_PACE * tile.rows * tile.columns * GROUP_CYCLES:
            return False
        return CLUSTERED_SHARE * most < blocks <= most and depth > tile.stages * self.depth * parts

    def stage_cycles(self, tile: BlockTile, parts: int) -> float:
        """Cycles of a stage of all blocks."""
        blocks = parts * self.blocks(tile)
        # Blocks of a part take turns.
        fit = 1 if self.device.as_parts else tile.resident(self.device)
        # Blocks of one multiprocessor share its tensor cores, and hide each other's latency.
        at_once = -(-blocks // self.device.multiprocessors)
        product = GROUP_CYCLES if tile.by_warpgroup else MULTIPLY_CYCLES
        products = tile.rows * tile.columns * self.depth * product * self.pace
        work = max(products, (tile.rows + tile.columns) * LINE_BYTES * COPY_CYCLES)
        fragments = 1 if tile.by_warpgroup else tile.warp_rows // 16 * tile.warp_columns // 8
        latency = STAGE_CYCLES + LINE_BYTES // STEP_BYTES // tile.warps_deep * (
            STEP_CYCLES + FRAGMENT_CYCLES * fragments
        )
        return max(at_once * work, -(-at_once // fit) * latency) + at_once * work / 8

    def product_cycles(self, tile: BlockTile, depth: int, straddle: tuple[bool, bool] = (False, False)) -> float:
        """Cycles of a whole product, most of which have no operand for each row in their epilogue.

        `straddle` says of the left and the right factors whether their lines begin in the middle of a line of L2.
        """
        tiles = -(-self.blocks(tile) // self.device.multiprocessors)
        busy = min(1.0, self.blocks(tile) / self.device.multiprocessors)
        fits_l2 = (self.down + self.across) * depth * self.itemsize <= self.device.l2_bytes
        whole = LONE_BOX_CYCLES if fits_l2 else FAR_BOX_CYCLES
        left, right = (max(whole, busy * STRADDLING_CYCLES) if each else whole for each in straddle)
        copies = (tile.rows * left + tile.columns * right) * LINE_BYTES
        products = tile.rows * tile.columns * self.depth * GROUP_CYCLES
        is_narrow = tile.rows * tile.columns // tile.threads <= NARROW_SUMS
        results = tile.rows * tile.columns * (NARROW_CYCLES if is_narrow else WIDE_CYCLES)
        sums = -(-depth // self.depth) * max(products, copies, ROUND_CYCLES)
        # Blocks of one multiprocessor hide each other's results.
        return START_CYCLES + tiles * sums + -(-tiles // tile.blocks) * results

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
        blocks = parts * self.blocks(tile)
        tiles = -(-blocks // self.device.multiprocessors)
        products = tile.rows * tile.columns * self.depth * GROUP_CYCLES
        busy = min(1.0, blocks / self.device.multiprocessors) if shares_l2 else 1.0
        copies = (tile.rows + tile.columns) * LINE_BYTES * max(BOX_CYCLES * busy, LONE_BOX_CYCLES)
        results = tile.rows * tile.columns * RESULT_CYCLES
        # Blocks of one multiprocessor hide each other's results.
        shown = tiles if tile.blocks == 1 else -(-tiles // tile.blocks)
        sums = -(-depth // (self.depth * parts)) * max(products, copies, ROUND_CYCLES)
        if self.down * self.across * result_bytes <= self.device.l2_bytes // 2:
            return START_CYCLES + tiles * sums + shown * results
        memory = tile.rows * tile.columns * result_bytes * MEMORY_CYCLES
        if tile.blocks == 1:
            return START_CYCLES + tiles * (sums + max(results, memory))
        shorter, longer = sorted((tiles * sums + shown * results, tiles * memory + sums))
        return START_CYCLES + longer + shorter / 8

    def adding_cycles(self, parts: int) -> float:
        """Cycles to add up the parts of a product, by whatever the device description says; 0 for one part."""
        return 0.0 if parts == 1 else self.device.sum_cycles + (parts - 2) * PART_CYCLES + self.sum_cycles(parts)

    def adding_cycles_of_producers(self, parts: int) -> float:
        """The same for parts that blocks with a producer compute."""
        if parts == 1:
            return 0.0
        return self.device.sum_cycles + PRODUCER_CYCLES + (parts - 2) * PRODUCER_PART_CYCLES + self.sum_cycles(parts)

    def sum_cycles(self, parts: int) -> float:
        """Cycles to write and read the sums of all parts."""
        nbytes = 2 * 4 * parts * self.count * self.down * self.across
        return nbytes * COPY_CYCLES / self.device.multiprocessors


__all__ = ["JOINED_CYCLES", "NARROW_SUMS", "START_CYCLES", "SUM_CYCLES", "Work"]

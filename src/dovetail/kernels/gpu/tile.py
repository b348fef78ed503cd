"""Tiles of a product of matrices: what a block computes, how its warps share it, and which tile suits a size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.device import GpuDevice

LANES = 32
CHUNK = 8
"""16-bit elements of one asynchronous copy."""
DEPTH = 64
"""Elements of k that a stage holds: rows of 128 bytes, which swizzling spreads over all banks of shared memory."""
H200 = GpuDevice(
    "sm_90a",
    multiprocessors=132,
    shared_bytes=227 << 10,
    l2_bytes=50 << 20,
    tensor_core_shapes=((16, 8, 16), (64, 256, 16)),
    converts_fp8=True,
)


@dataclass(frozen=True, slots=True)
class BlockTile:
    """Rows and columns of a block, and how its warps divide them."""

    rows: int
    columns: int
    warps_down: int
    warps_across: int
    stages: int
    by_warpgroup: bool = False
    """Whether four warps multiply 64 rows together, out of shared memory."""
    warps_deep: int = 1
    """Warps that share the elements of k among them, and add up their sums in the end."""
    blocks: int = 1
    """Blocks of a multiprocessor at once, where a warp of its own copies for the others."""
    width: int = 32
    """Columns that a warp then puts through shared memory at a time, of all streams together."""

    @property
    def threads(self) -> int:
        return LANES * self.warps_down * self.warps_across * self.warps_deep

    @property
    def warp_rows(self) -> int:
        return self.rows // self.warps_down

    @property
    def warp_columns(self) -> int:
        return self.columns // self.warps_across

    @property
    def shared_bytes(self) -> int:
        """Shared memory for all stages of both factors."""
        return self.stages * (self.rows + self.columns) * DEPTH * 2

    @property
    def pipelined_bytes(self) -> int:
        """The same with barriers, and with room for results of each warp."""
        staging = self.threads // LANES * WARP_ROWS * (self.width + CHUNK) * 4
        return self.shared_bytes + -(-staging // 1024) * 1024 + BARRIERS_BYTES

    def resident(self, device: GpuDevice) -> int:
        """Blocks that one multiprocessor holds, by shared memory and by registers."""
        sums = self.warps_deep * self.rows * self.columns // self.threads
        registers = self.threads * (sums + OTHER_REGISTERS)
        return max(1, min(device.shared_bytes // self.shared_bytes, device.registers // registers))


OTHER_REGISTERS = 64
"""Registers of a thread beyond its sums: addresses, fragments, conditions."""
TILES = (
    BlockTile(128, 128, 2, 4, 3),
    BlockTile(128, 64, 2, 2, 3),
    BlockTile(64, 128, 2, 2, 3),
    BlockTile(64, 64, 2, 2, 4),
    BlockTile(64, 32, 2, 1, 4, warps_deep=4),
    BlockTile(32, 64, 1, 2, 4, warps_deep=4),
    BlockTile(32, 32, 1, 1, 6, warps_deep=4),
    BlockTile(16, 64, 1, 2, 6, warps_deep=4),
    BlockTile(16, 32, 1, 1, 6, warps_deep=4),
    BlockTile(16, 16, 1, 1, 8, warps_deep=4),
)
"""From large to small. A large tile reads each element of a factor fewer times, a small one leaves no core idle."""
GROUP_TILES = (
    BlockTile(128, 256, 8, 1, 4, by_warpgroup=True),
    BlockTile(128, 128, 8, 1, 3, by_warpgroup=True),
    BlockTile(128, 64, 8, 1, 4, by_warpgroup=True),
    BlockTile(64, 128, 4, 1, 4, by_warpgroup=True),
    BlockTile(64, 64, 4, 1, 4, by_warpgroup=True),
)
"""The same where warpgroups multiply out of shared memory, in lines of at least 64 columns."""
GROUP_ROWS, WARP_ROWS = 64, 16
"""Rows of a warpgroup, and of each of its warps."""
PIPELINED_TILES = (
    BlockTile(128, 256, 8, 1, 4, by_warpgroup=True),
    BlockTile(128, 192, 8, 1, 5, by_warpgroup=True),
    BlockTile(128, 128, 8, 1, 6, by_warpgroup=True),
    BlockTile(64, 256, 4, 1, 5, by_warpgroup=True),
    BlockTile(64, 192, 4, 1, 3, by_warpgroup=True, blocks=2),
    BlockTile(64, 128, 4, 1, 4, by_warpgroup=True, blocks=2),
    BlockTile(64, 64, 4, 1, 6, by_warpgroup=True, blocks=2),
    BlockTile(64, 64, 4, 1, 12, by_warpgroup=True),
)
"""The same where a warp copies for the others."""
TALL_TILES = (
    BlockTile(192, 128, 12, 1, 4, by_warpgroup=True),
    BlockTile(256, 64, 16, 1, 4, by_warpgroup=True),
    BlockTile(192, 64, 12, 1, 6, by_warpgroup=True),
    BlockTile(128, 64, 8, 1, 3, by_warpgroup=True, blocks=2),
)
"""For convolutions, which have few columns and many rows."""
ROWS = 512
"""Rows of a product whose size is known at run time only."""
MULTIPLY_CYCLES, GROUP_CYCLES, COPY_CYCLES = 1 / 1024, 1 / 2048, 1 / 40
"""Cycles of a multiprocessor for a product of two elements, by warps and by warpgroups, and for a byte copied."""
FEWEST_ROWS = 33
"""Rows from which a warpgroup is not mostly idle."""
START_CYCLES, ROUND_CYCLES, BOX_CYCLES, RESULT_CYCLES = 2000, 140, 1 / 40, 1 / 10
"""Cycles before the first stage is full, of a small stage, for a byte that the TMA copies, for a result."""
NARROW_SUMS, NARROW_CYCLES, WIDE_CYCLES = 96, 1 / 14, 1 / 7
"""Sums of a thread up to which it puts results of 16 bits through shared memory, and cycles for a result of a product
that does, or that puts sums there."""
LONE_BOX_CYCLES = 1 / 64
"""Cycles for a byte that the TMA copies to one multiprocessor: all of them together are slower, as they share L2."""
MEMORY_CYCLES = 1 / 17
"""Cycles of a multiprocessor for its share of a byte in memory."""
BARRIERS_BYTES, RESERVED_BYTES = 2048, 1024
"""Shared memory for barriers, and what every block takes for itself."""
STAGE_CYCLES, STEP_CYCLES, FRAGMENT_CYCLES = 180, 40, 4
"""Latency of a stage, of 16 elements of k in it, and of each 16×8 product of a warp."""


SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Into how many parts k may go, each of them for blocks of its own."""
SUM_CYCLES = 4000
"""Cycles for a second kernel, which adds up the parts."""
JOINED_CYCLES, PART_CYCLES = 50, 700
"""Cycles for a kernel that runs anyway to add them up as well, and for each part more than two that it loads."""
SPLIT_GAIN = 0.9
"""The share of the time that parts must save: a second kernel has costs that the estimate does not see."""
FEWEST_ROUNDS = 2
"""Rounds of a part."""
FEWEST_STAGES, MOST_STAGES = 3, 8
"""Stages in shared memory: one that is multiplied, one that a warpgroup may still read, and copies in flight."""


def tile_of(
    batch: Size, rows: Size, columns: Size, depth: Size, streams: int, device: GpuDevice
) -> tuple[BlockTile, int]:
    """The tile and the parts of k with the lowest estimate; one part where sizes are not known."""
    work = _Work.of(batch, rows, columns, streams, device)
    rounds = max(1, -(-depth // DEPTH)) if isinstance(depth, int) else 1
    splits = _splits((batch, rows, columns, depth), rounds, streams, device)

    def cycles(choice: tuple[BlockTile, int]) -> float:
        tile, parts = choice
        return -(-rounds // parts) * work.stage_cycles(tile, parts) + work.adding_cycles(parts)

    return min([(tile, parts) for parts in splits for tile in _fitting(streams, device)], key=cycles)


def cycles_of(
    tile: BlockTile,
    batch: Size,
    rows: Size,
    columns: Size,
    depth: Size,
    streams: int,
    device: GpuDevice,
    *,
    has_producer: bool,
    parts: int = 1,
) -> float:
    """An estimate of a product, without the start of its kernel; 0 where its depth is not known."""
    if not isinstance(depth, int):
        return 0.0
    work = _Work.of(batch, rows, columns, streams, device)
    if has_producer:
        return work.pipelined_cycles(tile, depth, parts) - START_CYCLES
    return -(-depth // (DEPTH * parts)) * work.stage_cycles(tile, parts)


def pipelined_tile_of(
    rows: Size, columns: Size, depth: int, streams: int, panel: int, device: GpuDevice
) -> tuple[BlockTile, int] | None:
    """The tile with a producer and the equal parts of k with the lowest estimate; None where the device has no tile
    that fits.

    The columns of each stream are a multiple of `panel`.
    """
    work, rounds = _Work.of(1, rows, columns, streams, device), -(-depth // DEPTH)
    splits = [p for p in _splits((rows, columns, depth), rounds, streams, device) if rounds % p == 0]
    fitting = _pipelined(PIPELINED_TILES, streams, panel, device)
    choices = [(tile, parts) for parts in splits for tile in fitting if not work.may_crowd(tile, parts)]
    # Estimates of whole products were fitted without what multiprocessors gain that copy while others have no work.
    whole = min([c for c in choices if c[1] == 1], key=lambda c: work.product_cycles(c[0], depth), default=None)

    def cycles(choice: tuple[BlockTile, int]) -> float:
        tile, parts = choice
        return work.pipelined_cycles(tile, depth, parts, shares_l2=True) + work.adding_cycles(parts)

    return whole and min([whole, *(c for c in choices if c[1] > 1)], key=cycles)


def _splits(sizes: Sequence[Size], rounds: int, streams: int, device: GpuDevice) -> list[int]:
    """The parts that the rounds of a product may go in: sums of one stream can be added up later."""
    known = all([isinstance(size, int) for size in sizes]) and streams == 1 and isfinite(device.sum_cycles)
    return [p for p in SPLITS if p == 1 or (known and rounds >= p * FEWEST_ROUNDS)]


def pipelined_split_of(
    rows: Size, columns: Size, depth: int, device: GpuDevice, result_bytes: int, *, parts: bool = True
) -> tuple[BlockTile, int] | None:
    """The tile with a producer and the equal parts of k with the lowest estimate; one part where rows are not known.

    `result_bytes` counts what the epilogue reads and writes for each result.
    """
    work, rounds = _Work.of(1, rows, columns, 1, device), -(-depth // DEPTH)
    most = rounds // FEWEST_ROUNDS if parts and isinstance(rows, int) else 1
    splits = [p for p in SPLITS if p == 1 or (p <= most and rounds % p == 0)]
    tiles = _pipelined((*PIPELINED_TILES, *TALL_TILES), 1, CHUNK, device)

    def cycles(choice: tuple[BlockTile, int]) -> float:
        tile, parts = choice
        if parts == 1:
            return work.pipelined_cycles(tile, depth, 1, result_bytes)
        return (work.pipelined_cycles(tile, depth, parts) + SUM_CYCLES + work.sum_cycles(parts)) / SPLIT_GAIN

    return min([(tile, parts) for tile in tiles for parts in splits], key=cycles, default=None)


def _pipelined(tiles: Sequence[BlockTile], streams: int, panel: int, device: GpuDevice) -> list[BlockTile]:
    """The tiles that a device has the instructions and the shared memory for."""
    room = device.shared_bytes + RESERVED_BYTES
    return [
        tile
        for tile in tiles
        if has_warpgroups(device)
        and tile.columns % (panel * streams) == 0
        and tile.width >= streams * LANES // WARP_ROWS * CHUNK
        and tile.pipelined_bytes <= room // tile.blocks - RESERVED_BYTES
    ]


def has_warpgroups(device: GpuDevice) -> bool:
    """Whether four warps of the device multiply together, out of shared memory."""
    return any(shape[0] == GROUP_ROWS for shape in device.tensor_core_shapes)


def split_of(batch: Size, rows: Size, columns: Size, depth: int, device: GpuDevice) -> tuple[BlockTile, int]:
    """The tile and the parts of k with the lowest estimate; one part where sizes are not known.

    It has as many stages as its share of the shared memory holds: where blocks are few, more copies are in flight.
    """
    work = _Work.of(batch, rows, columns, 1, device)
    known = all(isinstance(size, int) for size in (batch, rows, columns))
    rounds = -(-depth // DEPTH)
    splits = [p for p in SPLITS if p == 1 or (known and rounds >= p * FEWEST_ROUNDS)]

    def cycles(choice: tuple[BlockTile, int]) -> float:
        tile, parts = choice
        sums = 0.0 if parts == 1 else SUM_CYCLES + work.sum_cycles(parts)
        return -(-rounds // parts) * work.stage_cycles(tile, parts) + sums

    tile, parts = min([(tile, parts) for tile in _fitting(1, device) for parts in splits], key=cycles)
    blocks = parts * work.blocks(tile)
    at_once = min(-(-blocks // device.multiprocessors), tile.resident(device)) if known else tile.resident(device)
    room = device.shared_bytes // max(1, at_once) // replace(tile, stages=1).shared_bytes
    stages = min(MOST_STAGES, -(-rounds // parts) + 2, room)
    return replace(tile, stages=max(FEWEST_STAGES, stages)), parts


def _fitting(streams: int, device: GpuDevice) -> list[BlockTile]:
    """The tiles that a device has the instructions and the shared memory for."""
    every = (*(GROUP_TILES if has_warpgroups(device) else ()), *TILES)
    fitting = [t for t in every if t.warp_columns % (CHUNK * streams) == 0]
    return [t for t in fitting if t.shared_bytes <= device.shared_bytes]


@dataclass(frozen=True, slots=True)
class _Work:
    """A product on a device, as estimates see it."""

    count: int
    down: int
    across: int
    device: GpuDevice

    @staticmethod
    def of(batch: Size, rows: Size, columns: Size, streams: int, device: GpuDevice) -> _Work:
        count = batch if isinstance(batch, int) else 1
        down = rows if isinstance(rows, int) else ROWS
        across = streams * (columns if isinstance(columns, int) else ROWS)
        return _Work(count, down, across, device)

    def blocks(self, tile: BlockTile) -> int:
        return self.count * -(-self.down // tile.rows) * -(-self.across // tile.columns)

    def may_crowd(self, tile: BlockTile, parts: int) -> bool:
        """Whether two blocks may share a multiprocessor while others have none: they start where blocks of the kernel
        before leave room."""
        few = parts * self.blocks(tile) <= self.device.multiprocessors
        return self.device.dependent_launches and tile.blocks > 1 and few

    def stage_cycles(self, tile: BlockTile, parts: int) -> float:
        """Cycles of a stage of all blocks."""
        blocks = parts * self.blocks(tile)
        fit = tile.resident(self.device)
        # Blocks of one multiprocessor share its tensor cores, and hide each other's latency.
        at_once = -(-blocks // self.device.multiprocessors)
        product = GROUP_CYCLES if tile.by_warpgroup else MULTIPLY_CYCLES
        work = max(tile.rows * tile.columns * DEPTH * product, (tile.rows + tile.columns) * 2 * DEPTH * COPY_CYCLES)
        fragments = 1 if tile.by_warpgroup else tile.warp_rows // 16 * tile.warp_columns // 8
        latency = STAGE_CYCLES + DEPTH // 16 // tile.warps_deep * (STEP_CYCLES + FRAGMENT_CYCLES * fragments)
        return max(at_once * work, -(-at_once // fit) * latency) + at_once * work / 8

    def product_cycles(self, tile: BlockTile, depth: int) -> float:
        """Cycles of a whole product, most of which have no operand for each row in their epilogue."""
        is_narrow = tile.rows * tile.columns // tile.threads <= NARROW_SUMS
        return self.pipelined_cycles(tile, depth, result_cycles=NARROW_CYCLES if is_narrow else WIDE_CYCLES)

    def pipelined_cycles(
        self,
        tile: BlockTile,
        depth: int,
        parts: int = 1,
        result_bytes: int = 0,
        *,
        result_cycles: float = RESULT_CYCLES,
        shares_l2: bool = False,
    ) -> float:
        """Cycles of a kernel whose producer runs ahead: the start, products or copies, and results.

        Those that do not fit L2 take the time of memory, while other blocks of a multiprocessor multiply. With
        `shares_l2`, copies are faster where fewer multiprocessors have work.
        """
        blocks = parts * self.blocks(tile)
        tiles = -(-blocks // self.device.multiprocessors)
        products = tile.rows * tile.columns * DEPTH * GROUP_CYCLES
        busy = min(1.0, blocks / self.device.multiprocessors) if shares_l2 else 1.0
        copies = (tile.rows + tile.columns) * 2 * DEPTH * max(BOX_CYCLES * busy, LONE_BOX_CYCLES)
        results = tile.rows * tile.columns * result_cycles
        # Blocks of one multiprocessor hide each other's results.
        shown = tiles if tile.blocks == 1 else -(-tiles // tile.blocks)
        sums = -(-depth // (DEPTH * parts)) * max(products, copies, ROUND_CYCLES)
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

    def sum_cycles(self, parts: int) -> float:
        """Cycles to write and read the sums of all parts."""
        nbytes = 2 * 4 * parts * self.count * self.down * self.across
        return nbytes * COPY_CYCLES / self.device.multiprocessors


__all__ = [
    "CHUNK",
    "DEPTH",
    "FEWEST_ROWS",
    "GROUP_ROWS",
    "H200",
    "JOINED_CYCLES",
    "LANES",
    "NARROW_SUMS",
    "SUM_CYCLES",
    "TILES",
    "WARP_ROWS",
    "BlockTile",
    "cycles_of",
    "has_warpgroups",
    "pipelined_split_of",
    "pipelined_tile_of",
    "split_of",
    "tile_of",
]

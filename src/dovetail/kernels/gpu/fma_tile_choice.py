"""Tiles of products without tensor cores: those that there are, and which one suits a size."""

from __future__ import annotations

from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, f32
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.block_tile import LANES, RESERVED_BYTES
from dovetail.kernels.gpu.tile import splits_of
from dovetail.kernels.gpu.tile_cost import Work

LANES_DOWN, LANES_ACROSS = 4, 8
"""How the lanes of a warp divide its rows and columns: eight of them read 128 bytes of a row, and write as many."""
GROUP = 4
"""Neighbours that a thread reads at once, and the padding of a line in shared memory."""
LEAST_DEPTH = 4
"""Elements of k in a stage, at least."""
MOST_STAGES = 4
"""Stages in shared memory: copies of the later ones are in flight while the first one is multiplied."""
FMA_CYCLES = 1 / 128
"""Cycles of a multiprocessor for a product of two f32."""
ISSUE = 1.2
"""Cycles for each instruction of a multiprocessor: some products read two registers of one bank."""
STAGE_CYCLES, LONE = 150, 1.15
"""Latency of a stage, whose copies are awaited, and how much longer the work of a block takes if it is alone."""
OTHER_REGISTERS, STREAM_REGISTERS = 60, 24
"""Registers of a thread beyond its sums, and more of them for each further stream."""


@dataclass(frozen=True, slots=True)
class FmaShape:
    """Rows and columns of a block, and how its warps and their lanes divide them."""

    warps_down: int
    warps_across: int
    rows_each: int
    """Rows of a thread."""
    columns_each: int
    depth: int = 16
    """Elements of k in a stage."""

    @property
    def threads(self) -> int:
        return LANES * self.warps_down * self.warps_across

    @property
    def warp_rows(self) -> int:
        return LANES_DOWN * self.rows_each

    @property
    def warp_columns(self) -> int:
        return LANES_ACROSS * self.columns_each

    @property
    def rows(self) -> int:
        return self.warps_down * self.warp_rows

    @property
    def columns(self) -> int:
        return self.warps_across * self.warp_columns

    def in_rounds(self, depth: int, parts: int) -> FmaShape:
        """The same with stages so short that a product of little depth has two.

        Those of a single round would move to the stores of their sums, after all that they read, which takes more
        registers than there are.
        """
        stage = self.depth
        while stage > LEAST_DEPTH and 0 < depth <= stage * parts:
            stage //= 2
        return replace(self, depth=stage)

    def stage_bytes(self, streams: int, dtype: DType) -> int:
        """Shared memory of a stage."""
        lines = self.rows + GROUP + streams * (self.columns + GROUP)
        return self.depth * lines * dtype.itemsize

    def stages(self, streams: int, dtype: DType, device: GpuDevice) -> int:
        """Stages of factors that are copied: those that leave room for the other blocks of a multiprocessor."""
        room = (device.shared_bytes + RESERVED_BYTES) // self.resident(streams, dtype, device) - RESERVED_BYTES
        return max(2, min(MOST_STAGES, room // self.stage_bytes(streams, dtype)))

    def resident(self, streams: int, dtype: DType, device: GpuDevice) -> int:
        """Blocks that one multiprocessor holds, by registers, and by shared memory for two stages."""
        words = max(1, dtype.itemsize // 4)
        others = OTHER_REGISTERS + STREAM_REGISTERS * (streams - 1)
        registers = self.threads * (streams * self.rows_each * self.columns_each + others) * words
        shared = 2 * self.stage_bytes(streams, dtype) + RESERVED_BYTES
        return max(1, min(device.registers // registers, (device.shared_bytes + RESERVED_BYTES) // shared))


SHAPES = (
    FmaShape(4, 2, 8, 8),
    FmaShape(2, 2, 8, 4),
    FmaShape(2, 2, 4, 8),
    FmaShape(2, 2, 4, 4, 32),
)
"""From large to small. A large tile reads each element of a factor fewer times, a small one leaves no core idle.

Tiles of 16 rows, of 64 threads, and of 256×128 were never faster on an H200."""
BLOCKS_SHAPE = FmaShape(2, 2, 4, 4, 32)
"""Where columns are in blocks, which threads expand: two of them share a column."""


def fma_tile_of(
    batch: Size, rows: Size, columns: Size, depth: Size, streams: int, dtype: DType, device: GpuDevice
) -> tuple[FmaShape, int, float]:
    """The tile and the parts of k with the lowest estimate, and that estimate, 0 where the depth is not known.

    Sums of parts are f32.
    """
    work = Work.of(batch, rows, columns, streams, device)
    known = depth if isinstance(depth, int) else 0

    def cycles(choice: tuple[FmaShape, int]) -> float:
        shape, parts = choice
        rounds = max(1, -(-known // (shape.depth * parts)))
        return rounds * _stage_cycles(shape, parts, work, streams, dtype) + work.adding_cycles(parts)

    splits = splits_of((batch, rows, columns, depth), known // SHAPES[-1].depth, streams, device)
    fitting = [shape for shape in SHAPES if streams * shape.rows_each * shape.columns_each * dtype.itemsize <= 512]
    best = min([(shape, p) for p in (splits if dtype is f32 else [1]) for shape in fitting], key=cycles)
    shape, parts = best
    estimate = cycles(best) - work.adding_cycles(parts) if known else 0.0
    return shape.in_rounds(known, parts), parts, estimate


def _stage_cycles(shape: FmaShape, parts: int, work: Work, streams: int, dtype: DType) -> float:
    """Cycles of a stage of all blocks; blocks of one multiprocessor share its lanes, and hide each other's latency."""
    columns = streams * shape.columns
    blocks = parts * work.count * -(-work.down // shape.rows) * -(-work.across // columns)
    at_once = -(-blocks // work.device.multiprocessors)
    products = shape.rows * columns * shape.depth * FMA_CYCLES * max(1, dtype.itemsize // 4)
    # Few rows or columns of a thread read more of shared memory for each product.
    across = shape.columns_each * streams
    each = products * ISSUE * (1 + (shape.rows_each + across) / (shape.rows_each * across))
    turns = -(-at_once // shape.resident(streams, dtype, work.device))
    return max(at_once * each, turns * (LONE * each + STAGE_CYCLES))


__all__ = ["BLOCKS_SHAPE", "GROUP", "LANES_ACROSS", "LANES_DOWN", "SHAPES", "FmaShape", "fma_tile_of"]

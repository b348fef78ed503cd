"""Tiles of a product of matrices: what a block computes, how its warps share it, and its shared memory."""

from __future__ import annotations

from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import SHARED_ALIGNMENT, STATIC_BYTES
from dovetail.kernels.matrix_instruction import LANES, LINE_BYTES
from dovetail.kernels.request import Request

CHUNK = 8
"""Columns of a group of results, and 16-bit elements of one asynchronous copy."""
CHUNK_BYTES = 16
"""Of one asynchronous copy."""
DEPTH = 64
"""Elements of 16 bits of k that a stage holds: a line of shared memory, which swizzling spreads over all banks."""
GROUP_ROWS, WARP_ROWS = 64, 16
"""Rows of a warpgroup, and of each of its warps."""
BARRIERS_BYTES, RESERVED_BYTES = 2048, 1024
"""Shared memory for barriers, and what every block takes for itself."""


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
    cluster: int = 1
    """Blocks of a cluster: neighbours down the rows, each of which then copies a share of the columns for all."""
    lanes: int = LANES
    """Of a warp."""

    def with_warps_of(self, lanes: int) -> BlockTile:
        """The same rows, columns and threads by warps of some lanes."""
        tile = self
        while tile.lanes < lanes:
            sides = ("warps_across", "warps_down", "warps_deep")
            halved = next({side: n // 2} for side in sides if (n := getattr(tile, side)) % 2 == 0)
            tile = replace(tile, lanes=2 * tile.lanes, **halved)
        return tile

    @property
    def threads(self) -> int:
        return self.lanes * self.warps_down * self.warps_across * self.warps_deep

    @property
    def warp_rows(self) -> int:
        return self.rows // self.warps_down

    @property
    def warp_columns(self) -> int:
        return self.columns // self.warps_across

    @property
    def shared_bytes(self) -> int:
        """Shared memory for all stages of both factors: lines of k."""
        return self.stages * (self.rows + self.columns) * LINE_BYTES

    @property
    def pipelined_bytes(self) -> int:
        """The same with barriers, and with room for results of each warp."""
        staging = self.threads // self.lanes * WARP_ROWS * (self.width + CHUNK) * 4
        return self.shared_bytes + -(-staging // 1024) * 1024 + BARRIERS_BYTES

    def resident(self, device: GpuDevice) -> int:
        """Blocks that one multiprocessor holds, by shared memory and by registers."""
        sums = self.warps_deep * self.rows * self.columns // self.threads
        registers = self.threads * (sums + OTHER_REGISTERS)
        return max(1, min(device.shared_bytes // self.shared_bytes, device.registers // registers))


def chunk_of(dtype: DType) -> int:
    """Elements of one asynchronous copy."""
    return CHUNK_BYTES // dtype.itemsize


def depth_of(dtype: DType) -> int:
    """Elements of k that a stage holds."""
    return LINE_BYTES // dtype.itemsize


def dynamic_bytes(nbytes: int) -> int:
    """Dynamic shared memory of a block that uses some bytes; 0 where a kernel may have them without."""
    return nbytes if nbytes > STATIC_BYTES else 0


def spread_bytes(nbytes: int, grid: Size, device: GpuDevice, request: Request) -> int:
    """The same with more than it uses, where more than an equal share of the blocks would fit a multiprocessor.

    Blocks that start while kernels before them still run go where these leave room, as many as fit: of 256 blocks four
    went to each of 64 multiprocessors of an H200, and 68 had none. Where blocks share the lanes of a multiprocessor,
    the launch then takes twice as long: a product of 1024³ after a softmax takes 106 µs without this and 59 with it,
    MiniLM 8×128 in f32 1,023 and 790 (docs/design/0018).
    """
    if not request.starts_early or not isinstance(grid, int):
        return dynamic_bytes(nbytes)
    least = least_bytes(-(-grid // device.multiprocessors), device)
    return dynamic_bytes(nbytes) if nbytes >= least else least


def least_bytes(blocks: int, device: GpuDevice) -> int:
    """Shared memory of a block from which on no more than some blocks fit a multiprocessor."""
    fits = (device.shared_bytes + RESERVED_BYTES) // (blocks + 1) - RESERVED_BYTES
    return (fits // SHARED_ALIGNMENT + 1) * SHARED_ALIGNMENT


OTHER_REGISTERS = 64
"""Registers of a thread beyond its sums: addresses, fragments, conditions."""

__all__ = [
    "BARRIERS_BYTES", "CHUNK", "DEPTH", "GROUP_ROWS", "RESERVED_BYTES", "WARP_ROWS", "BlockTile", "chunk_of",
    "depth_of", "dynamic_bytes", "least_bytes", "spread_bytes",
]  # fmt: skip

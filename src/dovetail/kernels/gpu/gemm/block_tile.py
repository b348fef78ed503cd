"""Tiles of a product of matrices: what a block computes, and how its warps share it."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.device import GpuDevice

LANES = 32
CHUNK = 8
"""16-bit elements of one asynchronous copy."""
DEPTH = 64
"""Elements of k that a stage holds: rows of 128 bytes, which swizzling spreads over all banks of shared memory."""
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

__all__ = [
    "BARRIERS_BYTES", "CHUNK", "DEPTH", "GROUP_ROWS", "LANES", "RESERVED_BYTES", "WARP_ROWS", "BlockTile",
]  # fmt: skip

"""How many columns a block of a product with few rows has."""

from __future__ import annotations

from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.tile import CHUNK

WIDTHS = (64, 32, 16)
"""Columns of a block, from wide to narrow, where they are neighbours in memory: rows of 32 bytes are the shortest that
memory reads without waste."""
MOST_COLUMNS = 64
RESIDENT = 2
"""Blocks that a multiprocessor has at once."""


def width_of_block(batch: int, columns: int, axis: str, device: GpuDevice) -> int:
    """Columns of a block."""
    if axis == "row":
        # Where columns are few, more of k in flight makes up for multiprocessors that have none.
        enough = [w for w in WIDTHS if batch * -(-columns // w) * 10 >= 9 * device.multiprocessors]
        return enough[0] if enough else WIDTHS[-1]

    def busiest(width: int) -> int:
        """Columns of the multiprocessor that has the most."""
        return -(-batch * -(-columns // width) // device.multiprocessors) * width

    return min(range(MOST_COLUMNS, 0, -CHUNK), key=busiest)


def as_good(width: int, batch: int, columns: int, device: GpuDevice) -> list[int]:
    """Columns of a block, from `width` to fewer, that give no multiprocessor more; blocks at once stay at once."""
    count = device.multiprocessors

    def blocks(of: int) -> int:
        return batch * -(-columns // of)

    at_once = RESIDENT * count if blocks(width) <= RESIDENT * count else blocks(CHUNK)
    busiest = -(-blocks(width) // count) * width
    return [w for w in range(width, 0, -CHUNK) if blocks(w) <= at_once and -(-blocks(w) // count) * w <= busiest]


__all__ = ["RESIDENT", "as_good", "width_of_block"]

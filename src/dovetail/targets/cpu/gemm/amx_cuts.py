"""How products of many rows are cut for tiles of AMX."""

from __future__ import annotations

from dovetail.codegen.llvm.amx import COLUMNS, STEPS
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.gemm.policy import AMX


def takes_tiles(device: CpuDevice, deep: int, count: Size) -> bool:
    """Whether a device multiplies many rows on tiles, and a product may have as many."""
    fits = device.has("amx_bf16") and device.lanes == COLUMNS and deep % STEPS == 0
    return fits and not (isinstance(count, int) and count < AMX.least)


def rows_on_tiles(device: CpuDevice, deep: int, panels: int, count: Size, at_most: int = AMX.rows) -> int:
    """Rows of a block, whole pairs of tiles: as bf16 they stay in L2 while all panels of a thread go over them."""
    above, below = AMX.l2_share
    few = -(-AMX.panels * device.threads // max(1, panels))
    most = max(AMX.few_rows, at_most // max(1, few))
    rows = max(AMX.least, min(most, device.caches.l2 * above // below // (bf16.itemsize * max(1, deep))))
    rows -= rows % AMX.least
    # A long prompt has runs of the most rows: blocks of these are equal, so that threads have as much to do.
    whole = count if isinstance(count, int) else most
    return min(rows, _ceil(_ceil(whole, _ceil(whole, rows)), AMX.least) * AMX.least)


def part_on_tiles(device: CpuDevice, deep: int, columns: int, whole: int) -> int:
    """Steps along k of the part of a panel that stays in L1 while all rows pass: equal parts, `whole` steps each."""
    above, below = AMX.l1_share
    most = max(whole, device.caches.l1 * above // below // (bf16.itemsize * columns) // whole * whole)
    return _ceil(_ceil(deep, _ceil(deep, most)), whole) * whole


def whole_steps(deep: int) -> int:
    """A depth that is filled up to whole tiles."""
    return _ceil(deep, STEPS) * STEPS


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


__all__ = ["part_on_tiles", "rows_on_tiles", "takes_tiles", "whole_steps"]

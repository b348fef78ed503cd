"""The loop policy of CPUs: scalar primitives of the LLVM printer, tile sizes that fit L1."""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.maths import functions
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.policy import LoopTarget, TilePolicy

SUPPORT = scalar.support(functions.has)
_SMALL_L1 = 32 << 10


_FEW_THREADS = 2
"""Threads that read parts of rows together no faster than one reads whole rows."""


@cache
def tiles_for(l1_bytes: int, l2_bytes: int = 1 << 20, threads: int = 1) -> TilePolicy:
    """Tiles that stay in L1 with what they read. L1 caches of 32 to 64 KiB have the same: larger tiles gain nothing."""
    half = max(_SMALL_L1, l1_bytes // 2)
    return TilePolicy(
        map_elements=half // 8,
        tile_bytes=half // 2,
        square=32,  # longer columns evict each other from the sets of L1
        bundle=256,  # long enough for whole cache lines, short enough that its scalars stay in L1
        block=2048,
        bundled_block=64,
        widest_bundle=half // 16 if threads <= _FEW_THREADS else 0,  # sums in f32 and f64, and a row
        cached_bytes=l2_bytes,
    )


def loops_of(device: CpuDevice) -> LoopTarget:
    """Return the loop policy of a processor."""
    return LoopTarget(SUPPORT, tiles_for(device.caches.l1, device.caches.l2_room, device.threads))


__all__ = ["SUPPORT", "loops_of", "tiles_for"]

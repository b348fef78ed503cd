"""What NVIDIA GPUs hand to the kernel families: scalar primitives without a C library, tiles that threads share."""

from __future__ import annotations

from dovetail.codegen.llvm.ptx import LANES, SUPPORT
from dovetail.kernels.loops.gpu_schedule import GpuShape
from dovetail.kernels.loops.policy import LoopTarget, TilePolicy
from dovetail.kernels.loops.split_reduce import SplitLimits

SHAPE = GpuShape(lanes=LANES)
MULTIPROCESSORS = 132
"""Of an H100 or H200; a device with fewer runs the blocks of a split reduction in more than one wave."""
SPLIT = SplitLimits(blocks=4 * MULTIPROCESSORS, bundle_blocks=2 * MULTIPROCESSORS, elements=8192)
LOOPS = LoopTarget(
    SUPPORT,
    TilePolicy(
        map_elements=4 * SHAPE.threads,
        tile_bytes=16 * SHAPE.threads,
        square=LANES,
        bundle=LANES,
        block=LANES * SHAPE.warp_elements,  # at most 32 elements for each thread of the largest block
        bundled_block=64 * LANES,
        threads=SHAPE.threads,
        vector_bytes=16,
        kept_elements=16 * SHAPE.most_threads,
    ),
)

__all__ = ["LOOPS", "SHAPE", "SPLIT"]

"""What GPUs hand to the kernel families: scalar primitives without a C library, tiles that threads share."""

from __future__ import annotations

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.maths import functions
from dovetail.ir.dtype import f64
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import LANES
from dovetail.kernels.loops.gpu_schedule import GpuShape
from dovetail.kernels.loops.policy import LoopTarget, ScalarSupport, TilePolicy
from dovetail.kernels.loops.split_reduce import SplitLimits

SUPPORT: ScalarSupport = scalar.support(functions.has_on_gpu, inexact=(("rem", f64),))
"""What kernels for GPUs compute with: there is no C library."""
SHAPE = GpuShape(lanes=LANES)
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
        woven_elements=1 << 18,
        kept_elements=16 * SHAPE.most_threads,
    ),
)


def split_limits(device: GpuDevice) -> SplitLimits:
    """When rows are split: four blocks for each multiprocessor of the device, or two that take a bundle of rows."""
    blocks = device.multiprocessors
    return SplitLimits(blocks=4 * blocks, bundle_blocks=2 * blocks, elements=8192)


__all__ = ["LOOPS", "SHAPE", "split_limits"]

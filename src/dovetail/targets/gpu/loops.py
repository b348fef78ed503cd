"""What GPUs hand to the kernel families: scalar primitives without a C library, tiles that threads share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dovetail.codegen.llvm.gpu.printer import SUPPORT
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.loops.gpu_schedule import GpuShape
from dovetail.kernels.loops.policy import LoopTarget, TilePolicy
from dovetail.kernels.loops.split_reduce import SplitLimits
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import Step

SHAPE = GpuShape()


@cache
def loops_of(lanes: int) -> LoopTarget:
    """What a device whose warps have some lanes hands to kernel families."""
    tiles = TilePolicy(
        map_elements=4 * SHAPE.threads,
        tile_bytes=16 * SHAPE.threads,
        square=LANES,
        bundle=lanes,
        block=LANES * SHAPE.warp_elements,  # at most 32 elements for each thread of the largest block
        bundled_block=64 * lanes,
        threads=SHAPE.threads,
        vector_bytes=16,
        woven_elements=1 << 18,
        kept_elements=16 * SHAPE.most_threads,
    )
    return LoopTarget(SUPPORT, tiles)


LOOPS = loops_of(LANES)


def split_limits(device: GpuDevice) -> SplitLimits:
    """When rows are split: four blocks for each multiprocessor of the device, or two that take a bundle of rows."""
    blocks = device.multiprocessors
    return SplitLimits(blocks=4 * blocks, bundle_blocks=2 * blocks, elements=8192)


def with_even_vectors(locations: TensorLocations, step: Step, width: int) -> TensorLocations:
    """Half vectors where these give all lanes equally many in rows of `width` elements, and whole ones do not.

    With 48 vectors in a row, half of the lanes would wait for the others: MiniLM took 2 to 3 % longer."""
    policy, lanes = locations.target.tiles, SHAPE.lanes
    item = step.results[0].dtype.itemsize
    vectors = width * item // policy.vector_bytes
    if vectors < lanes or vectors % lanes == 0 or 2 * vectors % lanes:
        return locations
    half = replace(policy, vector_bytes=policy.vector_bytes // 2)
    return replace(locations, target=replace(locations.target, tiles=half))


__all__ = ["LOOPS", "SHAPE", "loops_of", "split_limits", "with_even_vectors"]

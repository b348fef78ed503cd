"""Shared memory that keeps multiprocessors from taking more than an equal share of the blocks of a launch.

Blocks that start while kernels before them still run go where these leave room, as many as fit: of 256 blocks four went
to each of 64 multiprocessors of an H200, and 68 had none. Where blocks share the lanes of a multiprocessor, the launch
then takes twice as long: a product of 1024³ after a softmax takes 106 µs without this and 59 with it, MiniLM 8×128 in
f32 1,023 and 790 (docs/design/0018).
"""

from __future__ import annotations

from dovetail.ir.dim import Size
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import RESERVED_BYTES
from dovetail.kernels.loops.analysis import SHARED_ALIGNMENT, STATIC_BYTES
from dovetail.kernels.request import Request


def dynamic_bytes(nbytes: int) -> int:
    """Dynamic shared memory of a block that uses some bytes; 0 where a kernel may have them without."""
    return nbytes if nbytes > STATIC_BYTES else 0


def spread_bytes(nbytes: int, grid: Size, device: GpuDevice, request: Request) -> int:
    """The same with more than it uses, where more than an equal share of the blocks would fit."""
    if not request.starts_early or not isinstance(grid, int):
        return dynamic_bytes(nbytes)
    least = least_bytes(-(-grid // device.multiprocessors), device)
    return dynamic_bytes(nbytes) if nbytes >= least else least


def least_bytes(blocks: int, device: GpuDevice) -> int:
    """Shared memory of a block from which on no more than some blocks fit a multiprocessor."""
    fits = (device.shared_bytes + RESERVED_BYTES) // (blocks + 1) - RESERVED_BYTES
    return (fits // SHARED_ALIGNMENT + 1) * SHARED_ALIGNMENT


__all__ = ["dynamic_bytes", "least_bytes", "spread_bytes"]

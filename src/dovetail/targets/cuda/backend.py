"""What back ends bring to what all GPUs share: NVIDIA's, and AMD's printer, which has no driver yet."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.codegen.llvm.nvptx import ptx
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.gpu.backend import GpuBackend


def _ptx(kernel: Kernel, alignment: Mapping[str, int], _: str) -> str:
    return ptx.module(kernel, alignment)


CUDA = GpuBackend(_ptx, CLAIMS.machine)


def backend_of(device: GpuDevice) -> GpuBackend:
    """The back end for a device."""
    if not device.architecture.startswith("gfx"):
        return CUDA
    from dovetail.codegen.llvm.amdgpu.printer import module

    return GpuBackend(module, CLAIMS.machine)


__all__ = ["CUDA", "backend_of"]

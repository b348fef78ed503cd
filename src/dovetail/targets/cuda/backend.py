"""What NVIDIA's GPUs bring to what all GPUs share."""

from __future__ import annotations

from dovetail.codegen.llvm.nvptx import ptx
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.gpu.backend import GpuBackend

BACKEND = GpuBackend(ptx.module, CLAIMS.machine)

__all__ = ["BACKEND"]

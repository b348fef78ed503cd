"""The simulated device as a backend of ONNX: kernels of cuda in lockstep, steps without a kernel on the host."""

from __future__ import annotations

import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

from dovetail.adapters.onnx_backend import DovetailBackend
from dovetail.plan.plan import Plan
from dovetail.settings import Settings
from dovetail.targets import Target
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.runs.run import CudaGraph
from dovetail.targets.cuda.target import TARGET
from dovetail.targets.gpu.kernel import GpuKernel
from tests.targets.cuda.assembled import assembled
from tests.targets.cuda.simulated import SimulatedDriver

ASSEMBLED = 8
"""One kernel of so many becomes machine code, where an assembler is installed."""


def _compile(plan: Plan, settings: Settings) -> CudaGraph:
    return CudaGraph(plan, SimulatedDriver)


SIMULATED: Target = replace(TARGET, compile=_compile)


class _Assembling(SimulatedDriver):
    """The simulated device, whose kernels also become PTX for an H200, and some of them machine code."""

    def ptx(self, kernel: GpuKernel) -> str:
        if zlib.crc32(kernel.text.encode()) % ASSEMBLED:
            assert ".entry" in to_ptx(kernel.text, self.architecture)
        else:
            with tempfile.TemporaryDirectory() as folder:
                assembled(kernel, self.architecture, Path(folder))
        return super().ptx(kernel)


def _assembled(plan: Plan, settings: Settings) -> CudaGraph:
    return CudaGraph(plan, _Assembling)


class AssembledBackend(DovetailBackend):
    """Prepares models for the simulated device, and compiles their kernels for a real one."""

    target = replace(TARGET, compile=_assembled)


class SimulatedBackend(DovetailBackend):
    """Prepares models for the simulated device."""

    target = SIMULATED


__all__ = ["SIMULATED", "AssembledBackend", "SimulatedBackend"]

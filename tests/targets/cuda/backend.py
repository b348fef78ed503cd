"""The simulated device as a backend of ONNX: kernels of cuda in lockstep, steps without a kernel on the host."""

from __future__ import annotations

from dataclasses import replace

from dovetail.adapters.onnx_backend import DovetailBackend
from dovetail.plan.plan import Plan
from dovetail.settings import Settings
from dovetail.targets import Target
from dovetail.targets.cuda.run import CudaGraph
from dovetail.targets.cuda.target import TARGET
from tests.targets.cuda.simulated import SimulatedDriver


def _compile(plan: Plan, settings: Settings) -> CudaGraph:
    return CudaGraph(plan, SimulatedDriver)


SIMULATED: Target = replace(TARGET, compile=_compile)


class SimulatedBackend(DovetailBackend):
    """Prepares models for the simulated device."""

    target = SIMULATED


__all__ = ["SIMULATED", "SimulatedBackend"]

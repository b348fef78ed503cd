"""The CPU target as the shared runtime sees it."""

from __future__ import annotations

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.policy import LoopTarget
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cpu.compiler import LlvmCompiler
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.cpu.records import RECORDS
from dovetail.targets.cpu.select import make_job
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.building.code_cache import CodeCache


def _select(step: Step, locations: TensorLocations) -> Job | None:
    return make_job(step, locations, host_device())


def _loops() -> LoopTarget:
    return loops_of(host_device())


_CODE = CodeCache(LlvmCompiler())
BACKEND = Backend("cpu", _select, _loops, _CODE, BUILT_IN, RECORDS)
"""This machine."""


def backend_for(device: CpuDevice, code: CodeCache = _CODE) -> Backend:
    """Kernels of another processor, to look at or to save: their code does not run here."""

    def select(step: Step, locations: TensorLocations) -> Job | None:
        return make_job(step, locations, device, BUILT_IN)

    return Backend("cpu", select, lambda: loops_of(device), code, BUILT_IN, RECORDS)


def lacks_bf16() -> str:
    """What this machine lacks to multiply bf16; "" for nothing."""
    device = host_device()
    has_products = device.has("amx_bf16") or device.has("avx512_bf16")
    return "" if has_products else "this machine has neither AMX-BF16 nor AVX512-BF16"


__all__ = ["BACKEND", "backend_for", "lacks_bf16"]

"""Whether the kernels of a program start while those before them still run."""

from __future__ import annotations

from dovetail.declare.cost import estimate, kernel_cost
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.row import is_attention
from dovetail.kernels.request import LAUNCH, Request
from dovetail.plan.plan import Plan


def request_of(plan: Plan, device: GpuDevice) -> Request:
    """Return the request for the kernels of a plan: launches, which start early where that pays.

    They hide the launch of a kernel and the first reads of its weights. A kernel that multiplies much keeps its
    multiprocessor busy, and blocks of the next one take shared memory and registers from it.
    """
    if not device.dependent_intensity:
        return LAUNCH
    pays = all([_intensity(step.value) <= _bound(step.value, device) for step in plan.phase("run")])
    return Request(starts_early=pays)


def _bound(value: Value, device: GpuDevice) -> float:
    return device.dependent_intensity * (device.timings.launches.attention_intensity if is_attention(value) else 1.0)


def _intensity(value: Value) -> float:
    """Operations for each byte of memory traffic."""
    cost = kernel_cost(value)
    return estimate(cost.flops) / max(1, estimate(cost.bytes))


__all__ = ["request_of"]

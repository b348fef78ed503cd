"""Whether the kernels of a program start while those before them still run."""

from __future__ import annotations

from dataclasses import replace

from dovetail.declare.cost import estimate, kernel_cost
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.row import is_attention
from dovetail.plan.plan import Plan


def with_launches(plan: Plan, device: GpuDevice) -> GpuDevice:
    """The device as the kernels of a plan use it: with dependent launches where they pay.

    They hide the launch of a kernel and the first reads of its weights. A kernel that multiplies much keeps its
    multiprocessor busy, and blocks of the next one take shared memory and registers from it.
    """
    if device.dependent_launches or not device.dependent_intensity:
        return device
    pays = all([_intensity(step.value) <= _bound(step.value, device) for step in plan.phase("run")])
    return replace(device, dependent_launches=pays)


def _bound(value: Value, device: GpuDevice) -> float:
    return device.dependent_intensity * (device.timings.launches.attention_intensity if is_attention(value) else 1.0)


def _intensity(value: Value) -> float:
    """Operations for each byte of memory traffic."""
    cost = kernel_cost(value)
    return estimate(cost.flops) / max(1, estimate(cost.bytes))


__all__ = ["with_launches"]

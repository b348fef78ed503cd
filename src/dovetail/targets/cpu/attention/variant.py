"""Attention as one kernel: queries, keys, values and masks are read where they are."""

from __future__ import annotations

from typing import Any

from dovetail import library
from dovetail.declare.fused import FusedOp
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.attention import attention_of
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.plan import Step
from dovetail.targets.cpu.attention.driver import attend_code
from dovetail.targets.cpu.attention.shape import Attend


def make_attend(step: Step, locations: TensorLocations, device: CpuDevice) -> Job | None:
    """The job of an attention of floats, rotated or not; None where a head's features are not known or not dense."""
    value = step.value
    if not isinstance(value.op, FusedOp) or value.op not in (library.attention, library.rope_attention):
        return None
    call: dict[str, Any] = value.op.arguments(value.operands, value.attrs)
    found = attention_of(value, call, locations)
    if found is None:
        return None
    problem = Attend.on(device, found)
    written = attend_code(problem)
    template = written.code.template(problem.pointers, written.sizes, written.scratch)
    bindings: dict[str, Value] = {n: value if n == "y" else call[n] for n in problem.pointers}
    return Job(template, bindings, Tiles(problem.tiles, problem.work))


__all__ = ["make_attend"]

"""Attention as one kernel: queries, keys, values and masks are read where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail import library
from dovetail.declare.fused import FusedOp
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.row_steps import row_steps
from dovetail.kernels.problems.attention import attention_call, attention_inside, attention_of, axes_of
from dovetail.kernels.spec import Job, SharedFunction, TensorLocations, Tiles
from dovetail.ops.region import region
from dovetail.plan.plan import Step
from dovetail.targets.cpu.attention.driver import attend_code
from dovetail.targets.cpu.attention.shape import Attend
from dovetail.targets.cpu.row_epilogue import row_epilogue


def make_attend(step: Step, locations: TensorLocations, device: CpuDevice) -> Job | None:
    """The job of an attention of floats and steps after it; None where a head's features are not known or not dense."""
    anchor = attention_inside(step.value) if step.value.op is region else None
    value = attention_call(step.value, anchor) if anchor is not None else step.value
    if not isinstance(value.op, FusedOp) or value.op not in (library.attention, library.rope_attention):
        return None
    call: dict[str, Any] = value.op.arguments(value.operands, value.attrs)
    found = attention_of(value, call, locations)
    if found is None:
        return None
    problem = Attend.on(device, found)
    shared: tuple[SharedFunction, ...] = ()
    bindings: dict[str, Value] = {n: step.results[0] if n == "y" else call[n] for n in problem.pointers}
    if anchor is not None:
        steps = row_steps(step, anchor, locations, axes_of(anchor), "row", device.lanes)
        if steps is None:
            return None
        epilogue, function = row_epilogue(steps)
        problem, shared = problem.followed_by(steps, epilogue), (function,)
        bindings |= steps.bindings
    written = attend_code(problem)
    template = written.code.template(problem.arguments, written.sizes, written.scratch)
    template = replace(template, shared=(*template.shared, *shared))
    return Job(template, bindings, Tiles(problem.tiles, problem.work))


__all__ = ["make_attend"]

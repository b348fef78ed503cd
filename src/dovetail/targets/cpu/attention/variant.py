"""Attention as one kernel: queries, keys, values and masks are read where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.backward import BackwardOp
from dovetail.declare.fused import FusedOp
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.row_steps import RowForm, row_steps, steps_above
from dovetail.kernels.problems.attention import (
    Attention,
    attention_call,
    attention_inside,
    attention_of,
    axes_of,
    find_widened,
)
from dovetail.kernels.spec import Job, SharedFunction, Tiles
from dovetail.library.attention import attention
from dovetail.ops.region import region
from dovetail.targets.cpu.attention.amx import multiplies_on_tiles
from dovetail.targets.cpu.attention.driver import attend_code
from dovetail.targets.cpu.attention.f16 import few_in_halves, multiplies_halves
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend, packs
from dovetail.targets.cpu.attention.tile import AttendCode
from dovetail.targets.cpu.gemm.row_panels import BOTH_TO_BF16
from dovetail.targets.cpu.row_epilogue import row_epilogue


@dataclass(frozen=True, slots=True)
class _Step:
    """An attention on a device, the tensors that its kernel reads and writes, and the function of steps after it."""

    problem: Attend
    bindings: Mapping[str, Value]
    shared: tuple[SharedFunction, ...] = ()


def offer_online(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel with queries in lanes and an online softmax over blocks of keys."""
    step = of.once(_attention)
    if isinstance(step, Refused):
        return step
    if step.problem.is_few:
        return Refused("queries_fill_lanes", str(step.problem.queries), f"more than {ATTENTION.few}")
    return Offer(lambda: _job(step, attend_code(step.problem)))


def offer_decode(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel for a few queries, with features in lanes: it reads keys and values once."""
    step = of.once(_attention)
    if isinstance(step, Refused):
        return step
    problem = step.problem
    if not problem.is_few:
        queries = str(problem.queries) if problem.rotated is None else "rotated queries"
        return Refused("queries_are_few", queries, f"at most {ATTENTION.few}, known and not rotated")
    return Offer(lambda: _job(step, attend_code(step.problem)))


def offer_backward(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a backward pass: scores are computed again in the workspace."""
    from dovetail.targets.cpu.attention.backward import AttendBack, backward_code  # for training alone

    value = of.value
    assert isinstance(value.op, BackwardOp), "the table lists its ops"
    forward = value.op.forward_value(value)
    call: dict[str, Any] = attention.arguments(forward.operands, forward.attrs)
    names = forward.attrs["operands"]
    gradients = tuple([str(names[i]) for i in value.attrs["wanted"]])
    written = dict(zip([f"d{name}" for name in gradients], of.step.results, strict=True))
    bindings = {**call, **written, "g": value.operands[-1]}
    shape = attention_of(forward, call, of.locations, {**written, "g": value.operands[-1]})
    if isinstance(shape, Refused):
        return shape
    problem = AttendBack.of(of.device, shape, gradients)
    return Offer(lambda: _job(_Step(problem, {n: bindings[n] for n in problem.pointers}), backward_code(problem)))


def _attention(of: StepProblem[CpuDevice]) -> _Step | Refused:
    """A step as an attention, with the elementwise steps after it if it is a region."""
    anchor = attention_inside(of.value) if of.value.op is region else None
    if anchor is None and of.value.op is region:
        return _widened(of)
    value = of.value if anchor is None else attention_call(of.value, anchor)
    assert isinstance(value.op, FusedOp), "the table lists its ops"
    call: dict[str, Any] = value.op.arguments(value.operands, value.attrs)
    attention = attention_of(value, call, of.locations)
    if isinstance(attention, Refused):
        return attention
    problem = _on(of, attention)
    bindings: dict[str, Value] = {n: of.step.results[0] if n == "y" else call[n] for n in problem.pointers}
    if anchor is None:
        return _Step(problem, bindings)
    steps = row_steps(of, anchor, steps_above(of, anchor), axes_of(anchor), RowForm("row", of.device.lanes))
    if isinstance(steps, Refused):
        return steps
    epilogue, function = row_epilogue(steps)
    return _Step(problem.followed_by(steps, epilogue), bindings | dict(steps.bindings), (function,))


def _widened(of: StepProblem[CpuDevice]) -> _Step | Refused:
    """A region that widens keys or values of f16, as an attention that reads them as they are."""
    widened = find_widened(of.value, of.locations)
    if widened is None:
        return Refused("attention_reads_operands", "steps before it")
    attention = widened.attention({"y": of.step.results[0]}, of.locations)
    if isinstance(attention, Refused):
        return attention
    problem = _on(of, attention)
    if not problem.is_few:
        return Refused("queries_are_few", str(problem.queries), f"at most {ATTENTION.few}, for keys of f16")
    names = [name for name in problem.pointers if name != "y"]
    bindings = {**{name: widened.operand(name) for name in names}, "y": of.step.results[0]}
    return _Step(replace(problem, offsets=tuple([(name, widened.offset(name)) for name in names])), bindings)


def _on(of: StepProblem[CpuDevice], attention: Attention) -> Attend:
    """An attention on the device of a step."""
    problem = Attend.on(of.device, attention)
    if not of.locations.is_fast:
        return problem
    is_long = of.device.has("fma_by_lane") and not packs(problem, "k") and not packs(problem, "v")
    few_block = ATTENTION.few_keys if is_long else problem.few_block
    few_halves = few_in_halves(problem)
    halves, on_tiles = multiplies_halves(problem), multiplies_on_tiles(problem)
    return replace(problem, halves=halves, on_tiles=on_tiles, few_halves=few_halves, few_block=few_block)


def _job(of: _Step, written: AttendCode) -> Job:
    problem = of.problem
    template = written.code.template(problem.arguments, written.sizes, written.scratch)
    rounding = f"with more than {ATTENTION.few} queries {BOTH_TO_BF16}" if problem.on_tiles else ""
    template = replace(template, shared=(*template.shared, *of.shared), rounding=rounding)
    return Job(template, of.bindings, Tiles(problem.tiles, problem.work))


__all__ = ["offer_backward", "offer_decode", "offer_online"]

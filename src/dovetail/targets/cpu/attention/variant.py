"""Attention as one kernel: queries, keys, values and masks are read where they are."""

from __future__ import annotations

from typing import Any

from dovetail.declare.fused import FusedOp
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.attention import attention_of
from dovetail.kernels.spec import Job, Tiles
from dovetail.targets.cpu.attention.driver import attend_code
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend


def offer_online(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel with queries in lanes and an online softmax over blocks of keys."""
    problem = of.once(_attention)
    if isinstance(problem, Refused):
        return problem
    if problem.is_few:
        return Refused("queries_fill_lanes", str(problem.queries), f"more than {ATTENTION.few}")
    return Offer(lambda: _job(of.value, problem))


def offer_decode(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel for a few queries, with features in lanes: it reads keys and values once."""
    problem = of.once(_attention)
    if isinstance(problem, Refused):
        return problem
    if not problem.is_few:
        found = str(problem.queries) if problem.rotated is None else "rotated queries"
        return Refused("queries_are_few", found, f"at most {ATTENTION.few}, known and not rotated")
    return Offer(lambda: _job(of.value, problem))


def _attention(of: StepProblem[CpuDevice]) -> Attend | Refused:
    found = attention_of(of.value, _call(of.value), of.locations)
    return found if isinstance(found, Refused) else Attend.on(of.device, found)


def _call(value: Value) -> dict[str, Any]:
    assert isinstance(value.op, FusedOp), "the table lists its ops"
    return value.op.arguments(value.operands, value.attrs)


def _job(value: Value, problem: Attend) -> Job:
    call, written = _call(value), attend_code(problem)
    template = written.code.template(problem.pointers, written.sizes, written.scratch)
    bindings: dict[str, Value] = {n: value if n == "y" else call[n] for n in problem.pointers}
    return Job(template, bindings, Tiles(problem.tiles, problem.work))


__all__ = ["offer_decode", "offer_online"]

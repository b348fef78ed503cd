"""The functions that the attentions of a graph will call, known before the graph is lowered."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from dovetail import library, ops
from dovetail.declare.backward import BackwardOp
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.choice import Offer, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job, SharedFunction, Template, TensorLocations
from dovetail.plan.alias import find_aliases, locate
from dovetail.plan.plan import Step
from dovetail.targets.cpu.attention.online import functions_of_any_strides
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import widths
from dovetail.targets.cpu.attention.variant import offer_backward, offer_online
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.runtime.building.attempt import attempt


def early_functions(values: Iterable[Value], device: CpuDevice) -> list[SharedFunction]:
    """The functions of attentions that are spelled out in a graph, without those that depend on strides of masks."""
    asked = dict.fromkeys([(*v.shape[-2:], _is_bare(v.operands[0])) for v in values if _is_attention(v)])
    called = [
        function
        for queries, features, twos in asked
        if isinstance(features, int)
        for wide in reversed(widths(device, queries))
        for function in functions_of_any_strides(device, wide, features, twos=twos)
    ]
    return list({f.name: f for f in called}.values())


def early_in_training(values: Iterable[Value], device: CpuDevice) -> list[SharedFunction]:
    """The functions of attentions that have a gradient, and of that: both stay one op each, as they are written.

    They are those of the kernels for operands that are stored as they stand in the graph now. Where a later pass
    stores an operand otherwise, a function of these may go unused, and another one is compiled with the kernels.
    """
    asked: dict[Hashable, Value] = {}
    for value in values:
        if isinstance(value.op, BackwardOp) and value.op.forward is library.attention:
            for one in (value.op.forward_value(value), value):
                asked.setdefault((one.op, one.attrs_key, tuple([v.type for v in one.operands])), one)
    return list({f.name: f for value in asked.values() for f in _called(value, device)}.values())


def _called(value: Value, device: CpuDevice) -> Sequence[SharedFunction]:
    """What the kernel of a value calls; nothing where there is none."""
    aliases = find_aliases(walk(value.operands))
    locations = TensorLocations(lambda v: locate(v, aliases), (), target=loops_of(device))
    job = attempt(_job, Step(value.op.name, value, "run"), locations, device)
    return job.kernel.shared if job is not None and isinstance(job.kernel, Template) else ()


def _job(step: Step, locations: TensorLocations, device: CpuDevice) -> Job | None:
    offers = offer_backward if isinstance(step.value.op, BackwardOp) else offer_online
    offer = offers(StepProblem(step, locations, device))
    job = offer.build() if isinstance(offer, Offer) else None
    return job if isinstance(job, Job) else None


def _is_attention(value: Value) -> bool:
    """Whether a value is the product of a softmax with the values of keys, for more than a few queries."""
    if value.op is not ops.matmul or value.dtype is not f32:
        return False
    weights, taken = value.operands
    queries = value.shape[-2] if value.rank > 1 else 1
    is_many = not isinstance(queries, int) or queries > ATTENTION.few
    return is_many and weights.rank > 2 and weights.rank == taken.rank and _scores(weights) is not None


def _scores(weights: Value) -> Value | None:
    """What a softmax is of; None for other values."""
    if weights.op is library.softmax:
        return weights.operands[0]
    raised = weights.operands[0] if weights.op is ops.div else weights
    moved = raised.operands[0] if raised.op is ops.exp else raised
    return moved.operands[0] if raised.op is ops.exp and moved.op is ops.sub else None


def _is_bare(weights: Value) -> bool:
    """Whether nothing but a scale comes between the product of queries and keys and the softmax."""
    scores = _scores(weights)
    while scores is not None and scores.op in (ops.mul, ops.div):
        scores = scores.operands[0]
    return scores is not None and scores.op in (ops.matmul, library.scores)


__all__ = ["early_functions", "early_in_training"]

"""Which steps of a plan run on the host, because no compiled kernel takes them; nothing is compiled to find out."""

from __future__ import annotations

from collections.abc import Hashable

from dovetail.ir.value import Value, attrs_key
from dovetail.kernels.job import Places
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.ready import Writer


def hosted(plan: Plan) -> frozenset[Value]:
    """The values of the run phase that have no kernel. Layers repeat: of steps that are alike one is asked about."""
    writer = Writer(plan)
    known: dict[Hashable, bool] = {}
    found: list[Value] = []
    for step in plan.phase("run"):
        key = _key(step, writer.places)
        if key not in known:
            known[key] = writer.job(step) is None
        if known[key]:
            found.append(step.value)
    return frozenset(found)


def _key(step: Step, places: Places) -> Hashable:
    """All that decides whether a kernel takes a step."""
    value = step.value
    laid = tuple([(v.type, places(v).strides, places(v).offset, places.is_bound(v)) for v in step.operands])
    return value.op, attrs_key(value.attrs), value.type, laid, step.over is None, step.over in step.operands


__all__ = ["hosted"]

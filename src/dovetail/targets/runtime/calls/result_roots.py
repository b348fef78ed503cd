"""Which outputs of a plan have memory to themselves, so that a run can make them in the memory that a caller keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dovetail.ir.value import Value
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Plan


def fresh_results(plan: Plan) -> dict[str, Value]:
    """The root of each output that is not donated and has a root in the arena to itself, by name."""
    fresh: dict[str, Value] = {}
    roots = Counter(plan.root_of(v) for v in plan.graph.outputs.values())
    donated = {d.output for d in plan.donations}
    for name, value in plan.graph.outputs.items():
        at = plan.locate(value)
        slot = None if name in donated else plan.slots.get(at.root)
        whole = at.offset == 0 and at.root.tensor.bytes == value.tensor.bytes and is_dense(value.tensor, at.strides)
        if slot is not None and slot.pool == "arena" and whole and roots[at.root] == 1:
            fresh[name] = at.root
    return fresh


def chained(plan: Plan, roots: Iterable[Value]) -> dict[Value, Value]:
    """These roots and the chains of roots that they reuse in place; each with the root at the end of its chain."""
    over = {step.value: step.over for step in plan.phase("run") if step.over is not None}
    chained: dict[Value, Value] = {}
    for root in roots:
        at: Value | None = root
        while at is not None:
            chained[at] = root
            at = over.get(at)
    return chained


__all__ = ["chained", "fresh_results"]

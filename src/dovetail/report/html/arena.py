"""The arena over time: which bytes each tensor holds, from the step that makes it to the last that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.declare.cost import estimate
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops.movement import again
from dovetail.plan.alias import root_of
from dovetail.plan.liveness import round_up
from dovetail.plan.plan import Plan


def arena_picture(plan: Plan, sizes: Mapping[str, Size]) -> dict[str, Any]:
    """Slots of the run phase as rectangles of steps and bytes; symbols count as in estimates."""
    steps = plan.phase("run")
    first_kernel = len(plan.steps) - len(steps)
    made: dict[Value, int] = {}
    last: dict[Value, int] = {}
    over: dict[Value, int] = {}
    for at, step in enumerate(steps):
        for operand in step.operands:
            last[root_of(operand, plan.aliases)] = at
        for tensor in step.overs:
            if tensor is not None:  # from this step on the bytes are the result's
                over[tensor] = at
        for result in step.results:
            made[result] = last[result] = at
    for output in plan.graph.outputs.values():
        last[root_of(output, plan.aliases)] = max(len(steps) - 1, 0)
    slots: list[dict[str, int]] = []
    held = [0] * (len(steps) + 1)
    for value, at in made.items():
        slot = plan.slots.get(value)
        if slot is None or slot.pool != "arena":
            continue
        end = min(last[value], over.get(value, len(steps)) - 1)
        size = estimate(slot.size, sizes)
        slots.append({"kernel": first_kernel + at, "offset": estimate(slot.offset, sizes), "size": size})
        slots[-1] |= {"first": at, "last": max(end, at)}
        if end >= at:
            held[at] += round_up(size, plan.alignment)
            held[end + 1] -= round_up(size, plan.alignment)
    for at in range(1, len(held)):
        held[at] += held[at - 1]
    return {
        "steps": len(steps),
        "first_kernel": first_kernel,
        "size": estimate(plan.arena_size, sizes),
        "peak": estimate(plan.peak, sizes),
        "unshared": estimate(plan.unshared_bytes, sizes),
        "bound": estimate(plan.bound_size, sizes),
        "slots": slots,
        "held": held[:-1],
        "backward": backward_from(plan),
    }


def backward_from(plan: Plan) -> int | None:
    """The first step that reads what was saved for the backward pass; None where there is none."""
    late: set[Value] = set()
    for value in plan.graph.values:
        if value.op is again or not late.isdisjoint(value.operands):
            late.add(value)
    return next((i for i, step in enumerate(plan.phase("run")) if step.value in late), None)

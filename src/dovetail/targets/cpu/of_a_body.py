"""Whether an op that a user declared has a kernel: one that the selection table makes of its body, and that pays."""

from __future__ import annotations

from collections.abc import Hashable

from dovetail.declare.cost import is_weight, total_seconds
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.type import TupleType, tensors
from dovetail.ir.value import Value, make
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.cpu.select import TABLE
from dovetail.targets.runtime.building.build import builder_of

_LARGEST_LOSS = 4.0
"""Kernels count by their own estimates, bodies by the machine model, which differ by less than this."""
_MOST_KNOWN = 1 << 12
_known: dict[Hashable, bool] = {}


def has_kernel(value: Value) -> bool:
    """Whether one kernel computes the value of a declared op, about as fast as the kernels of its body would."""
    bound = tuple([is_weight(v) for v in value.operands])
    key = (value.op, tuple([v.type for v in value.operands]), bound, value.attrs_key)
    served = _known.get(key)
    if served is None:
        if len(_known) > _MOST_KNOWN:
            _known.clear()
        served = _known[key] = _is_served(value)
    return served


def _is_served(value: Value) -> bool:
    assert isinstance(value.op, FusedOp), "an op that a user declared"
    operands = tuple(
        [
            make(leaf.PARAM if is_weight(v) else leaf.INPUT, (), {"name": f"operand.{index}", "type": v.type})
            for index, v in enumerate(value.operands)
        ]
    )
    alone = value.with_operands(operands)
    several = isinstance(alone.type, TupleType)
    results = [leaf.item(alone, i) for i in range(len(tensors(alone.type)))] if several else [alone]
    plan = make_plan(Graph.of({f"result.{index}": one for index, one in enumerate(results)}), target="cpu")
    step = next((step for step in plan.steps if step.value is alone), None)
    if step is None:
        return True
    rows = TABLE.considered(step, builder_of(plan, BACKEND).locations, host_device(), BACKEND.machine)
    taken = next((row for row in rows if row.taken), None)
    if taken is None or taken.name == TABLE.on_host:
        return False
    if taken.seconds is None:
        return True
    _, _, body = value.op.traced(tuple([v.type for v in operands]), alone.attrs, alone.attrs_key)
    return taken.seconds <= _LARGEST_LOSS * total_seconds(body.values, BUILT_IN)


__all__ = ["has_kernel"]

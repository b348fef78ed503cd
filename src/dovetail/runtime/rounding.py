"""The errors of kernels that round, measured on weights that are known when a report is written."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import DovetailError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.plan.served import Served
from dovetail.targets.reference.interpreter import evaluate_values


def rounding_errors(
    graph: Graph, served: Mapping[Value, Served], params: Mapping[str, Array] | None = None
) -> dict[Value, float]:
    """By value of a step; steps whose weights are not known yet are left out. `params` go before those of the graph."""
    arrays = {**graph.params, **(params or {})}

    def read(value: Value) -> Array:
        leaves = [v for v in walk([value]) if v.op is leaf.PARAM]
        (found,) = evaluate_values([value], {v: arrays[str(v.attrs["name"])] for v in leaves})
        return found

    found: dict[Value, float] = {}
    for value, by in served.items():
        if by.error is not None:
            try:
                found[value] = by.error(read)
            except (KeyError, DovetailError):
                continue
    return found


__all__ = ["rounding_errors"]

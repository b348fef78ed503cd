"""The kernels of a final graph, and which values of the graph as written each computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.declare.cost import is_free
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.text_print import local_names
from dovetail.ir.value import Value
from dovetail.plan.plan import Plan
from dovetail.report.record import Node


@dataclass(frozen=True, slots=True)
class KernelMap:
    """Kernels of the final graph, beside the nodes of the graph as written."""

    final: Graph
    kernels: tuple[Value, ...]
    names: Mapping[Value, str]
    nodes: Mapping[Value, tuple[Node, ...]]
    """Kernel -> the nodes as written that it computes, operands first."""

    def kernel_of(self, value: Value) -> Value | None:
        """The kernel that makes a value, seen through views and projections; None for what no kernel makes."""
        while value not in self.nodes:
            if len(value.operands) != 1:
                return None
            value = value.operands[0]
        return value


def kernel_map(written: Graph, plan: Plan, moved: Mapping[Value, Value]) -> KernelMap:
    """Where each node as written ended up."""
    kernels = tuple(step.value for step in plan.steps)
    names = local_names(written, written.values)
    computed: dict[Value, list[Node]] = {k: [] for k in kernels}
    for value in written.values:
        home = moved.get(value, value)
        # What was joined with others, or is repeated now, is a view of the kernel that computes it.
        while home not in computed and is_free(home) and not is_free(value) and len(home.operands) == 1:
            home = home.operands[0]
        if value.op not in leaf.LEAVES and home in computed:
            computed[home].append(Node(names[value], value.op.name, written.where(value)))
    final_names = local_names(plan.graph, plan.graph.values)
    return KernelMap(plan.graph, kernels, final_names, {k: tuple(n) for k, n in computed.items()})

"""The kernels of a final graph, and which values of the graph as written each computes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.declare.cost import is_free
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.text_print import local_names
from dovetail.ir.value import Value
from dovetail.passes.places import Places
from dovetail.plan.emitted import Emitted
from dovetail.plan.plan import Plan
from dovetail.report.record import CompiledKernel, Node


@dataclass(frozen=True, slots=True)
class KernelMap:
    """Kernels of the final graph, and the nodes of the graph as written."""

    final: Graph
    kernels: tuple[Value, ...]
    names: Mapping[Value, str]
    nodes: Mapping[Value, tuple[Node, ...]]
    """Kernel -> the nodes as written that it computes, operands first."""
    absorbed: Mapping[Value, tuple[Node, ...]]
    """Kernel -> the nodes that became views, constants or parts of other values in it."""
    served: Mapping[Value, tuple[Node, ...]]
    """The nodes for which a kernel works, where it computes none of them: what rules made out of other values."""
    node_of: Callable[[Value], Node | None]
    """The node as written that a value of any stage stands for."""

    def kernel_of(self, value: Value) -> Value | None:
        """The kernel that makes a value, seen through views and projections; None for what no kernel makes."""
        while value not in self.nodes:
            if len(value.operands) != 1:
                return None
            value = value.operands[0]
        return value


def kernel_map(written: Graph, plan: Plan, places: Places) -> KernelMap:
    """Where each node as written ended up."""
    kernels = tuple(step.value for step in plan.steps)
    names = local_names(written, written.values)
    homes = _homes(written, frozenset(kernels), places)
    late = frozenset(step.value for step in plan.phase("run"))
    readers = _readers(written, homes, late)

    def told(value: Value) -> Node:
        return Node(names[value], value.op.name, written.where(value))

    def node_of(value: Value) -> Node | None:
        node = places.node.get(value)
        return None if node is None or node not in names else told(node)

    nodes: dict[Value, list[Value]] = {k: [] for k in kernels}
    absorbed: dict[Value, list[Value]] = {k: [] for k in kernels}
    for value in written.values:
        if value in homes:
            nodes[homes[value]].append(value)
        elif value in readers:
            absorbed[readers[value]].append(value)
    served = _served(nodes, absorbed, homes, plan)
    final_names = local_names(plan.graph, plan.graph.values)
    computed, rest, others = (
        {k: tuple(map(told, some)) for k, some in each.items()} for each in (nodes, absorbed, served)
    )
    return KernelMap(plan.graph, kernels, final_names, computed, rest, others, node_of)


def compiled_kernel(emitted: Emitted, kernels: KernelMap) -> CompiledKernel:
    """A kernel of the target's compiler in the words of the graph as written."""
    nodes: dict[Node, None] = {}
    for value in emitted.values:
        nodes |= dict.fromkeys(_nodes_of(value, kernels))
    steps = tuple(kernels.names[v] for v in emitted.values if v in kernels.nodes)
    return CompiledKernel(emitted.name, emitted.form, emitted.type, tuple(nodes), steps, emitted.bytes)


def _nodes_of(value: Value, kernels: KernelMap) -> tuple[Node, ...]:
    """The nodes that a value stands for; a part of a node leads to the node, whichever of its readers is followed."""
    while True:
        node = kernels.node_of(value)
        found = kernels.nodes.get(value) or (() if node is None else (node,))
        readers = kernels.final.uses.readers.get(value, ())
        if found or not readers:
            return found
        value = readers[0]


def _homes(written: Graph, kernels: frozenset[Value], places: Places) -> dict[Value, Value]:
    """The kernel that makes each node."""
    homes: dict[Value, Value] = {}
    for value in written.values:
        home = places.last.get(value, value)
        # What was joined with others, or is repeated now, is a view of the kernel that computes it.
        while home not in kernels and is_free(home) and not is_free(value) and len(home.operands) == 1:
            home = home.operands[0]
        if value.op not in leaf.LEAVES and home in kernels:
            homes[value] = home
    return homes


def _readers(written: Graph, homes: Mapping[Value, Value], late: frozenset[Value]) -> dict[Value, Value]:
    """For nodes that no kernel makes the first kernel that reads them; for outputs the one that they are a view of."""
    found = dict(homes)
    left = [v for v in written.values if v.op not in leaf.LEAVES and v not in homes]
    for value in reversed(left):
        read = [found[r] for r in written.uses.readers[value] if r in found]
        if read:
            found[value] = next((k for k in read if k in late), read[0])
    for value in left:
        made = [found[v] for v in value.operands if v in found]
        if value not in found and made:
            found[value] = made[0]
    return found


def _served(
    nodes: Mapping[Value, Sequence[Value]],
    absorbed: Mapping[Value, Sequence[Value]],
    homes: Mapping[Value, Value],
    plan: Plan,
) -> dict[Value, Sequence[Value]]:
    """For a kernel that computes no node: those that it absorbed, else those of its origins, else those of a reader."""
    origins = plan.graph.origins
    found: dict[Value, Sequence[Value]] = {}
    readers = _first_readers(nodes)
    for kernel in reversed([k for k, listed in nodes.items() if not listed]):
        own = set(origins.get(kernel, ()))
        near = [v for v, home in homes.items() if own.intersection(origins.get(home, ()))]
        reader = readers.get(kernel)
        read = () if reader is None else nodes[reader] or found.get(reader, ())
        found[kernel] = absorbed[kernel] or near or read
    return found


def _first_readers(kernels: Collection[Value]) -> dict[Value, Value]:
    """The first kernel that reads each one, seen through views and projections."""
    found: dict[Value, Value] = {}
    for kernel in kernels:
        for value in kernel.operands:
            while value not in kernels and len(value.operands) == 1:
                value = value.operands[0]
            found.setdefault(value, kernel)
    return found


__all__ = ["KernelMap", "compiled_kernel", "kernel_map"]

"""Places: which value of each stage stands for a node as written, and which node a value stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.declare.cost import is_free
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value


@dataclass(frozen=True, slots=True)
class Places:
    """Nodes as written and the values of every stage, both ways."""

    last: Mapping[Value, Value]
    """Node as written -> what stands for it at the end; seen through views that went on the way."""
    node: Mapping[Value, Value]
    """Value of a stage -> the last node as written that it stands for; the first stage that has the value decides."""


def places(written: Graph, stages: Sequence[Graph]) -> Places:
    """Follow every node from the graph as written through the graphs that the passes made, one by one."""
    now = {value: value for value in written.values}
    node: dict[Value, Value] = {value: value for value in written.values}
    for graph in stages:
        alive = graph.uses.readers
        here: dict[Value, Value] = {}
        for value, before in now.items():
            after = graph.moved.get(before, before)
            # A rewrite may put a view on top that its readers look through: then the view goes, what it shows stays.
            while after not in alive and is_free(after) and len(after.operands) == 1:
                after = after.operands[0]
            now[value] = after
            if value.op not in leaf.LEAVES:
                here[after] = value
        for after, value in here.items():
            node.setdefault(after, value)
    return Places(now, node)


__all__ = ["Places", "places"]

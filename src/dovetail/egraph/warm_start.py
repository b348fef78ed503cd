"""Warm start: the e-graph holds what greedy fusion found, so that extraction never costs more than greedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dovetail.derive.missed import Applied
from dovetail.egraph.engine import EGraph
from dovetail.egraph.proof import Application
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value


def warm_start(
    egraph: EGraph,
    before: Graph,
    moved: Mapping[Value, Value],
    applied: Iterable[Applied],
    groups: Collection[str] = (),
) -> None:
    """Add what one round of replacing roots made of a graph whose values the e-graph knows."""
    fusions: dict[Value, Applied] = {}
    for fusion in applied:
        fusions[fusion.root] = fusion
        for value in fusion.covers:
            fusions.setdefault(value, fusion)
    for value in before.values:
        now = moved.get(value, value)
        if now is value:
            continue
        fusion = fusions.get(value)
        if now.op is value.op and now.operands == tuple([moved.get(v, v) for v in value.operands]):
            egraph.add(now)
        elif fusion is not None and (fusion.rule in groups or _is_replaced(value, now, moved.get(fusion.root), fusion)):
            egraph.apply(Application(fusion.rule, fusion.variant, "reassociated", value, now, fusion.covers))
    egraph.rebuild()


def _is_replaced(value: Value, now: Value, head: Value | None, fusion: Applied) -> bool:
    """Return whether an equal value replaced a value; a value that was swallowed is now part of its root."""
    if value is fusion.root or head is None:
        return value is fusion.root
    return now is not head and now.op is leaf.ITEM and head.op is leaf.ITEM and now.operands[0] is head.operands[0]


def choice_of(egraph: EGraph, graph: Graph) -> dict[Value, Value]:
    """Return for each class that a graph computes, by its representative, the node that the graph has."""
    nodes: dict[Value, Value] = {}
    for value in graph.values:
        if value in egraph:
            nodes.setdefault(egraph.find(value), egraph.canonical(value))
    return nodes

"""Unfusing: spell declared values out by their bodies, as far down as asked."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value


def keep_nothing(value: Value) -> bool:
    return False


def unfuse(graph: Graph, keep: Callable[[Value], bool] = keep_nothing) -> Graph:
    """Expand every declared value that is not kept, in sub-graphs too, until none is left."""

    def expand(value: Value, operands: tuple[Value, ...]) -> Value | None:
        new = value.with_operands(operands)
        return None if keep(new) else new.op.expansion(operands, new.attrs)

    while True:
        expanded = rebuild(graph, expand)
        if expanded is graph:
            return graph
        graph = expanded

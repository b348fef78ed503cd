"""Phases: what is computed once, when parameters are bound, and what every run computes."""

from __future__ import annotations

from typing import Literal, TypeAlias

from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.solve import bare_symbol
from dovetail.ir.value import Value
from dovetail.passes.specialize import fresh_symbols, value_symbols

Phase: TypeAlias = Literal["bind", "run"]


def bind_values(graph: Graph) -> set[Value]:
    """Values that depend on parameters and constants alone, sizes included."""
    known = {name for v in graph.parameters for size in v.shape if (name := bare_symbol(size)) is not None}
    early: set[Value] = set()
    for value in graph.values:
        if value.op is leaf.PARAM or value.op is leaf.CONST:
            early.add(value)
        elif value.op is not leaf.INPUT and all([v in early for v in value.operands]):
            fresh = set(fresh_symbols(value))
            # A size that only an input tells is not known when parameters are bound.
            if known.issuperset(name for name in value_symbols(value) if name not in fresh):
                early.add(value)
                known |= fresh
    return early

"""Sizes that are the larger or the smaller of two become that one, where the graph means nothing otherwise."""

from __future__ import annotations

from dovetail.ir.dim import Compound, Dim, Size, compounds, without
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Graph
from dovetail.passes.specialize import Specializer


def settle_sizes(graph: Graph) -> Graph:
    """The graph without the extremes that its constraints decide; these are checked in every run as before."""
    known = _decided(graph.constraints)
    if not known:
        return graph
    specializer = Specializer(lambda size: without(size, known), "what is known of its sizes", graph)
    return specializer.graph_with(graph.constraints)


def _decided(constraints: tuple[Constraint, ...]) -> dict[Compound, Size]:
    """What the smaller or the larger of two sizes is, where a constraint tells."""
    found = dict.fromkeys(e for c in constraints for size in (c.left, c.right) for e in compounds(size))
    extremes = [e for e in found if e.kind != "floordiv"]
    if not extremes:
        return {}
    above = {c.left - c.right for c in constraints if c.relation == "at_least"}
    apart = {c.left - c.right for c in constraints if c.relation == "equals"}
    known: dict[Compound, Size] = {}
    for extreme in extremes:
        own = Dim((((extreme,), 1),))
        for one, other in ((extreme.left, extreme.right), (extreme.right, extreme.left)):
            larger, smaller = (one, other) if extreme.kind == "max" else (other, one)
            if larger - smaller in above or own - one in apart or one - own in apart:
                known[extreme] = one
    return known

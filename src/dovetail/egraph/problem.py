"""What extraction chooses from: classes as numbers, the options of each with their price and the classes they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.declare.cost import Prices
from dovetail.egraph.engine import EGraph, is_early
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value, make

RUNS_A_BINDING = 1000
"""How many runs share the work of binding parameters: what weights alone decide is nearly free."""


class Option(NamedTuple):
    """One node of a class."""

    cost: float
    reads: tuple[int, ...]
    """The classes of its operands, each once."""
    node: Value | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Choose an option for each class that the roots need, without a cycle, at the least total cost."""

    options: Sequence[Sequence[Option]]
    roots: tuple[int, ...]
    names: Sequence[Value] = ()
    """What stands for each class in the e-graph."""

    def cost(self, picks: Sequence[int]) -> float:
        """What everything that the roots need costs, each class once."""
        return sum(self.options[c][picks[c]].cost for c in self.live(picks))

    def live(self, picks: Sequence[int]) -> list[int]:
        """The classes that the roots need, operands before readers. There must be no cycle."""
        done: dict[int, None] = {}
        opened: set[int] = set()
        stack = list(reversed(self.roots))
        while stack:
            c = stack[-1]
            if c not in opened:
                opened.add(c)
                stack.extend([r for r in reversed(self.options[c][picks[c]].reads) if r not in done])
                continue
            stack.pop()
            done.setdefault(c)
        return list(done)


def problem_of(egraph: EGraph, roots: Iterable[Value], seconds: Prices, keep: Iterable[Value] = ()) -> Problem:
    """The classes below the roots. Of options that read the same, the cheapest stays, and those to `keep`."""
    kept = set(keep)
    number: dict[Value, int] = {}
    names: list[Value] = []
    options: list[list[Option]] = []

    def numbered(leader: Value) -> int:
        known = number.get(leader)
        if known is None:
            known = number[leader] = len(names)
            names.append(leader)
        return known

    tops = tuple(dict.fromkeys(numbered(egraph.find(v)) for v in roots))
    position = 0
    while position < len(names):
        leader = names[position]
        early = egraph.is_constant(leader)
        best: dict[tuple[int, ...], Option] = {}
        others: list[Option] = []
        for node in egraph.equal(leader):
            if leader in node.operands or (early and not all([egraph.is_constant(v) for v in node.operands])):
                continue
            reads = tuple(dict.fromkeys([numbered(v) for v in node.operands]))
            price = seconds([standing(node, egraph.is_constant)])
            option = Option(price / RUNS_A_BINDING if early else price, reads, node)
            known = best.get(reads)
            if node in kept:
                others.append(option)
            elif known is None or option.cost < known.cost:
                best[reads] = option
        options.append([*others, *best.values()])
        position += 1
    return Problem(options, tops, names)


def standing(node: Value, is_constant: Callable[[Value], bool]) -> Value:
    """A node as a run meets it: what weights alone decide was there before, and is read like a parameter."""
    made = [v for v in node.operands if v.operands and is_constant(v)]
    if not made:
        return node
    now = {v: make(leaf.PARAM, (), {"name": f"bound.{i}", "type": v.type}) for i, v in enumerate(dict.fromkeys(made))}
    return node.with_operands(tuple([now.get(v, v) for v in node.operands]))


def graph_seconds(graph: Graph, seconds: Prices) -> float:
    """What a graph costs by the same measure: weight-only work is shared by many runs."""
    early: set[Value] = set()
    total = 0.0
    for value in graph.values:
        price = seconds([standing(value, early.__contains__)])
        if is_early(value, early):
            early.add(value)
            price /= RUNS_A_BINDING
        total += price
    return total

"""The two engines side by side on one graph, without the help of greedy fusion."""

from __future__ import annotations

import importlib.util
from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.declare.cost import Machine, Prices
from dovetail.egraph.decide import Vocabulary
from dovetail.egraph.egglog.session import by_egglog
from dovetail.egraph.engine import EGraph, egraph_of
from dovetail.egraph.extract import extract
from dovetail.egraph.problem import problem_of
from dovetail.egraph.saturate import Budget, Saturation, saturate
from dovetail.ir.graph import Graph

needs_egglog = pytest.mark.skipif(
    importlib.util.find_spec("egglog") is None, reason="egglog is not installed: pip install 'dovetail-ml[egglog]'"
)


@dataclass(frozen=True, slots=True)
class Searched:
    """What one engine made of a graph."""

    egraph: EGraph
    saturation: Saturation
    cost: float

    @property
    def matches(self) -> set[Hashable]:
        """Rules with the nodes that they took up, in whatever order of operands."""
        return {(a.name, frozenset(a.covers)) for a in self.saturation.log}


def searched(graph: Graph, words: Vocabulary, machine: Machine) -> Searched:
    egraph = egraph_of(graph.values, {v: graph.uses.count(v) for v in graph.values})
    saturation = saturate(egraph, words.phases(), Budget())
    assert not saturation.stopped
    problem = problem_of(egraph, graph.outputs.values(), Prices(machine))
    return Searched(egraph, saturation, extract(problem).cost)


def agree(graph: Graph, words: Vocabulary, machine: Machine) -> Searched:
    """Both engines come to the same cost, and egglog finds all that ours finds; what egglog found."""
    ours = searched(graph, words, machine)
    theirs = searched(graph, replace(words, finder=by_egglog), machine)
    assert ours.matches <= theirs.matches
    assert theirs.cost == pytest.approx(ours.cost, rel=1e-9)
    together = [[e.find(v) for v in graph.values] for e in (ours.egraph, theirs.egraph)]
    assert len(set(together[0])) == len(set(together[1])), "the engines unite different values of the graph"
    return theirs


def run(program: str, folder: Path) -> None:
    """A program in a fresh egglog, read as a file: a parse from Python copies the source into each of its parts."""
    bindings: Any = pytest.importorskip("egglog.bindings")
    (folder / "program.egg").write_text(program, encoding="utf-8")
    egraph = bindings.EGraph()
    egraph.run_program(*egraph.parse_program(f'(include "{folder / "program.egg"}")'))

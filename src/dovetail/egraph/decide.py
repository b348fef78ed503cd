"""Deciding: rules propose, the e-graph holds the alternatives, and the cost of the whole graph chooses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.declare.cost import Machine, Prices
from dovetail.declare.fused import FusedOp
from dovetail.declare.group import Group
from dovetail.derive.fuse import ANY_MACHINE, Fused, fuse, strata
from dovetail.derive.join import join
from dovetail.egraph.engine import EGraph, egraph_of
from dovetail.egraph.extract import Extraction, extract
from dovetail.egraph.groups import Joining
from dovetail.egraph.identity import Identities, Identity
from dovetail.egraph.layers import Layers
from dovetail.egraph.problem import Problem, graph_seconds, problem_of
from dovetail.egraph.replay import Replayed, solve
from dovetail.egraph.rules import Declared, Rewrite, Rewrites, Unfolding
from dovetail.egraph.saturate import Budget, Phase, Stopped
from dovetail.egraph.seed import choice_of, seed
from dovetail.egraph.selection import Selection, selection_of
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, follow


SAME = 1e-9
"""Costs that differ by less, as a share, are the same cost added in another order."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything that rules are derived from."""

    ops: Sequence[FusedOp[...]]
    groups: Sequence[Group] = ()
    rewrites: Sequence[Rewrite] = ()
    """Directed rewrites to canonical form."""
    identities: Sequence[Identity] = ()
    """Algebra that may pay, and may not."""
    strict: bool = False
    """Whether only rules that keep every bit are admitted."""

    def phases(self) -> list[Phase]:
        """Normalise, recognise, normalise, fuse, join; nothing that was there goes."""
        normalise = Phase("normalise", Rewrites(self.rewrites, strict=self.strict), repeats=True)
        found = [Phase("unfold", Unfolding(self.ops)), normalise]
        if self.identities:
            found += [Phase("algebra", Identities(self.identities, strict=self.strict), repeats=True), normalise]
        stages = strata(self.ops)
        for index, stratum in enumerate(stages):
            found.append(Phase(stratum[0].stage, Declared(stratum, strict=self.strict)))
            if stratum[0].stage == "recognise" and index + 1 < len(stages) and stages[index + 1][0].stage == "fuse":
                found.append(normalise)
        return [*found, *(Phase("join", Joining(group)) for group in self.groups)]


@dataclass(frozen=True, slots=True)
class Search:
    """What the search for the cheapest graph looked at, for reports."""

    classes: int
    nodes: int
    fired: Mapping[str, int]
    """How often each rule fired, counted once for windows that look the same."""
    pieces: int
    solved: int
    """How many of the pieces looked different."""
    seconds: Mapping[str, float]
    given: float
    """Predicted seconds of the graph as it was given, of what greedy fusion makes of it, and of what was chosen."""
    greedy: float
    chosen: float
    stopped: tuple[Stopped, ...]


@dataclass(frozen=True)
class Decided:
    """The graph that was chosen, what fused in it, what did not, and how it was found."""

    fused: Fused
    search: Search
    selection: Selection | None = field(repr=False, default=None)
    """The chosen nodes with their proofs; none where the search fell short of greedy fusion, and that was kept."""


def decide(
    graph: Graph,
    vocabulary: Vocabulary,
    *,
    machine: Machine = ANY_MACHINE,
    sizes: Mapping[str, Size] | None = None,
    budget: Budget | None = None,
) -> Decided:
    """The cheapest graph that the rules lead to, as far as the search finds it; never dearer than greedy fusion's."""
    clock = _Clock()
    graph_before, graph = graph, graph.settled()
    fused = fuse(graph, vocabulary.ops, machine=machine, sizes=sizes)
    joined = join(fused.graph.settled(), vocabulary.groups, machine=machine, sizes=sizes)
    clock.lap("greedy")
    seconds = Prices(machine, sizes)
    egraph = egraph_of(graph.values, {v: graph.uses.count(v) for v in graph.values})
    replayed = solve(Layers(graph), vocabulary.phases(), budget or Budget(), egraph)
    clock.lap("rules")
    if not vocabulary.strict:
        for round in fused.rounds:
            seed(egraph, round.before, round.moved, fused.applied)
        seed(egraph, fused.graph, joined.graph.moved, joined.applied, [g.name for g in vocabulary.groups])
    choice = choice_of(egraph, joined.graph)
    problem = problem_of(egraph, graph.outputs.values(), seconds, choice.values())
    found = _extracted(problem, choice, vocabulary.strict)
    clock.lap("extract")
    selection = selection_of(egraph, problem, found)
    greedy = graph_seconds(joined.graph, seconds)
    search = _search(egraph, replayed, found, graph_seconds(graph, seconds), greedy, clock)
    if found.cost > greedy * (1 + SAME) and not vocabulary.strict:
        return Decided(_greedy(graph_before, fused, joined), replace(search, chosen=greedy))
    result = selection.fused(graph, fused, joined)
    clock.lap("build")
    whole = replace(result.graph, moved=follow(graph_before.moved, result.graph.moved))
    return Decided(replace(result, graph=whole), search, selection)


def _extracted(problem: Problem, choice: Mapping[object, object], strict: bool) -> Extraction:
    greedy: dict[int, int] = {}
    for c, name in enumerate(problem.names):
        node = choice.get(name)
        index = next((i for i, option in enumerate(problem.options[c]) if option.node is node), None)
        if node is not None and index is not None:
            greedy[c] = index
    return extract(problem, [] if strict else [greedy])


def _greedy(base: Graph, fused: Fused, joined: Fused) -> Fused:
    """What greedy fusion made, both of its passes as one."""
    moved = follow(base.moved, follow(fused.graph.moved, joined.graph.moved))
    then = joined.graph.moved
    return Fused(
        replace(joined.graph, moved=moved),
        (*(a.follow(then) for a in fused.applied), *joined.applied),
        (*(m.follow(then) for m in fused.missed), *joined.missed),
        fused.rounds,
    )


def _search(
    egraph: EGraph, replayed: Replayed, found: Extraction, given: float, greedy: float, clock: _Clock
) -> Search:
    fired: Counter[str] = Counter()
    stopped: list[Stopped] = []
    for solved in replayed.solved:
        fired.update(solved.saturation.fired)
        stopped += solved.saturation.stopped
    return Search(
        classes=len(egraph.leaders),
        nodes=egraph.size,
        fired=dict(sorted(fired.items())),
        pieces=replayed.pieces,
        solved=len(replayed.solved),
        seconds=clock.laps,
        given=given,
        greedy=greedy,
        chosen=found.cost,
        stopped=tuple(dict.fromkeys(stopped)),
    )


class _Clock:
    """Seconds of each step, one after the other."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now

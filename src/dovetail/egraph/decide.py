"""Deciding: rules propose, the e-graph holds the alternatives, and the cost of the whole graph chooses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, cached_property
from typing import TypeAlias, overload

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine, Prices
from dovetail.declare.fused import FusedOp
from dovetail.declare.group import Group
from dovetail.derive.fuse import ANY_MACHINE, Fused, fuse, strata
from dovetail.derive.join import join
from dovetail.derive.missed import Missed
from dovetail.derive.near import Round, near_misses
from dovetail.egraph.declined import Declined
from dovetail.egraph.engine import EGraph, egraph_of
from dovetail.egraph.extract import Extraction, extract
from dovetail.egraph.fold import Fold, UnfoldableError, folded, unfolded
from dovetail.egraph.groups import Joining
from dovetail.egraph.identity import Identities, Identity
from dovetail.egraph.joined import shares_of
from dovetail.egraph.layers import Layers
from dovetail.egraph.problem import Problem, problem_of, problem_of_graph
from dovetail.egraph.replay import Replayed, solve
from dovetail.egraph.rules import Declared, Rewrite, Rewrites, RuleSet, Unfolding, admitted
from dovetail.egraph.saturate import Budget, Phase, Stopped, saturate
from dovetail.egraph.selection import Selection, selection_of
from dovetail.egraph.warm_start import choice_of, warm_start
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, follow
from dovetail.ir.value import Value

SAME = 1e-9
"""Costs that differ by less, as a share, are the same cost added in another order."""

Finder: TypeAlias = Callable[[Sequence[Sequence[FusedOp[...]]], bool], Sequence[RuleSet]]
"""Makes the rules that look for declared ops, stratum by stratum; strictly, of those that keep every bit alone."""


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
    finder: Finder | None = None
    """Finds the declared ops in place of our own matcher. It gets the whole graph, unfolded."""

    def phases(self) -> list[Phase]:
        """Return the phases: normalize, recognize, normalize, fuse, join. No phase removes a node."""
        normalise = Phase("normalise", Rewrites(self.rewrites, strict=self.strict), repeats=True)
        phases_ = [Phase("unfold", Unfolding(self.ops)), normalise]
        if self.identities:
            phases_ += [Phase("algebra", Identities(self.identities, strict=self.strict), repeats=True), normalise]
        stages = strata(self.ops)
        declared = (self.finder or _declared)(stages, self.strict)
        for index, (stratum, rules) in enumerate(zip(stages, declared, strict=True)):
            phases_.append(Phase(stratum[0].stage, rules))
            if stratum[0].stage == "recognise" and index + 1 < len(stages) and stages[index + 1][0].stage == "fuse":
                phases_.append(normalise)
        groups = [g for g in self.groups if admitted(g.numerics, self.strict)]
        return [*phases_, *(Phase("join", Joining(group)) for group in groups)]


def _declared(stages: Sequence[Sequence[FusedOp[...]]], strict: bool) -> list[RuleSet]:
    return [Declared(stratum, strict=strict) for stratum in stages]


@dataclass(frozen=True)
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
    """Of each step."""
    phases: Mapping[str, float]
    """Of each phase of rules, over all windows that look different."""
    stopped: tuple[Stopped, ...]
    price_original: Callable[[], float] = field(repr=False, compare=False)
    price_greedy: Callable[[], float] = field(repr=False, compare=False)
    price_chosen: Callable[[], float] = field(repr=False, compare=False)

    @cached_property
    def original(self) -> float:
        """Predicted seconds of the graph as written, computed for reports."""
        return self.price_original()

    @cached_property
    def greedy(self) -> float:
        """Predicted seconds of what greedy fusion makes of the graph."""
        return self.price_greedy()

    @cached_property
    def chosen(self) -> float:
        """Predicted seconds of what was chosen."""
        return self.price_chosen()


@dataclass(frozen=True)
class Decided:
    """The graph that was chosen, what fused in it, what did not, and how it was found."""

    fused: Fused
    search: Search
    selection: Selection | None = field(repr=False, default=None)
    """The chosen nodes with their proofs; none where the search fell short of greedy fusion, and that was kept."""
    rounds: Sequence[Round] = field(repr=False, default=())
    """What greedy fusion was given, stratum by stratum, of the graph that was decided: few of many equal layers."""

    def near_misses(self) -> list[Missed]:
        """Return what fits but for one op. Only reports read it; layers that look the same are searched once."""
        if self.selection is not None:
            try:
                return self.selection.near_misses(self.rounds)
            except UnfoldableError:
                pass
        return near_misses(self.fused.rounds, self.fused.applied)


def decide(
    graph: Graph,
    vocabulary: Vocabulary,
    *,
    machine: Machine = ANY_MACHINE,
    sizes: Mapping[str, Size] | None = None,
    budget: Budget | None = None,
) -> Decided:
    """Return the cheapest graph that the search reaches by the rules; never dearer than greedy fusion's."""
    base, graph = graph, graph.settled()
    work = task(vocabulary, machine=machine, sizes=sizes, budget=budget)
    layers = Layers(graph)
    fold = folded(graph, layers) if vocabulary.finder is None else None
    try:
        decided = work.run(unfolded(graph), layers) if fold is None else work.run(fold, Layers(fold.graph))
    except UnfoldableError:
        decided = work.run(unfolded(graph), layers)
    whole = replace(decided.fused.graph, moved=follow(base.moved, decided.fused.graph.moved))
    return replace(decided, fused=replace(decided.fused, graph=whole))


def task(
    vocabulary: Vocabulary,
    *,
    machine: Machine = ANY_MACHINE,
    sizes: Mapping[str, Size] | None = None,
    budget: Budget | None = None,
) -> Task:
    """Return what `decide` does to graphs, folded or not."""
    return Task(vocabulary, machine, sizes, budget or Budget())


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that decides what becomes of a graph."""

    vocabulary: Vocabulary
    machine: Machine
    sizes: Mapping[str, Size] | None
    budget: Budget

    def run(self, fold: Fold, layers: Layers | None = None) -> Decided:
        words, clock = self.vocabulary, _Clock()
        graph, seconds = fold.graph, Prices(self.machine, self.sizes)
        fused = fuse(graph, words.ops, machine=self.machine, sizes=self.sizes, prices=seconds)
        joined = join(fused.graph.settled(), words.groups, machine=self.machine, sizes=self.sizes)
        clock.lap("greedy")
        egraph = egraph_of(graph.values, {v: graph.uses.count(v) for v in graph.values})
        if words.finder is None:
            replayed = solve(layers or Layers(graph), words.phases(), self.budget, egraph)
        else:
            replayed = Replayed([saturate(egraph, words.phases(), self.budget)], pieces=1)
        clock.lap("rules")
        if fold.is_whole and not (fused.applied or joined.applied or any(s.fired for s in replayed.solved)):
            # No rule applies anywhere: the graph as it stands is the only choice.
            price = cache(lambda: _whole_cost(problem_of_graph(joined.graph, seconds), fold))
            return Decided(_greedy(fused, joined), _search(egraph, replayed, clock, price, price, price))
        if not words.strict:
            for round in fused.rounds:
                warm_start(egraph, round.before, round.moved, fused.applied)
            warm_start(egraph, fused.graph, joined.graph.moved, joined.applied, [g.name for g in words.groups])
        choice = choice_of(egraph, joined.graph)
        problem = problem_of(egraph, graph.outputs.values(), seconds, choice.values())
        extraction = _extracted(problem, choice, words.strict)
        clock.lap("extract")
        greedy = _whole_cost(problem_of_graph(joined.graph, seconds), fold)
        chosen = extraction.cost if fold.is_whole else _whole_cost(problem, fold, extraction.picks)

        def original() -> float:
            return _whole_cost(problem_of_graph(graph, seconds), fold)

        if chosen > greedy * (1 + SAME) and not words.strict:
            if not fold.is_whole:
                raise UnfoldableError("greedy fusion was not reached")
            search = _search(egraph, replayed, clock, original, lambda: greedy, lambda: greedy)
            return Decided(_greedy(fused, joined), search)
        selection = selection_of(egraph, problem, extraction, fold)
        declined = Declined(egraph, problem, extraction.picks)
        known = {op.name: op for op in words.ops}
        misses = declined.misses((*fused.missed, *joined.missed), (*fused.applied, *joined.applied), known)
        result = selection.fused(misses)
        clock.lap("build")
        search = _search(egraph, replayed, clock, original, lambda: greedy, lambda: chosen)
        rounds = fused.rounds if fold.is_whole else _Rounds(self, fold.whole)
        return Decided(replace(result, rounds=rounds), search, selection, fused.rounds)

    def rounds(self, graph: Graph) -> Sequence[Round]:
        return fuse(graph, self.vocabulary.ops, machine=self.machine, sizes=self.sizes).rounds


class _Rounds(Sequence[Round]):
    """The rounds of greedy fusion on the whole graph, stratum by stratum, computed when they are drawn."""

    def __init__(self, task: Task, graph: Graph) -> None:
        self._task = task
        self._graph = graph

    @cached_property
    def _drawn(self) -> Sequence[Round]:
        return self._task.rounds(self._graph)

    def __len__(self) -> int:
        return len(self._drawn)

    def __bool__(self) -> bool:
        return True

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Round]: ...
    def __getitem__(self, index: int | slice) -> Round | Sequence[Round]:
        return self._drawn[index]


def _whole_cost(problem: Problem, fold: Fold, picks: Sequence[int] | None = None) -> float:
    """Return the cost of a choice in the whole graph: each layer that was left out costs what its copy does."""
    shares = shares_of(problem, picks or [0] * len(problem.options))
    total = sum(shares.values())
    if fold.is_whole or len(fold.copies) < 3:
        return total
    layer = fold.copies[1]
    return total + (len(fold.copies) - 2) * sum([cost for c, cost in shares.items() if layer.owns(problem.names[c])])


def _extracted(problem: Problem, choice: Mapping[Value, Value], strict: bool) -> Extraction:
    greedy: dict[int, int] = {}
    for c, name in enumerate(problem.names):
        node = choice.get(name)
        index = next((i for i, option in enumerate(problem.options[c]) if option.node is node), None)
        if node is not None and index is not None:
            greedy[c] = index
    return extract(problem, [] if strict else [greedy])


def _greedy(fused: Fused, joined: Fused) -> Fused:
    """Return greedy fusion's graph, both of its passes as one."""
    then = joined.graph.moved
    return Fused(
        replace(joined.graph, moved=follow(fused.graph.moved, then)),
        (*(a.follow(then) for a in fused.applied), *joined.applied),
        (*(m.follow(then) for m in fused.missed), *joined.missed),
        fused.rounds,
    )


def _search(
    egraph: EGraph,
    replayed: Replayed,
    clock: _Clock,
    original: Callable[[], float],
    greedy: Callable[[], float],
    chosen: Callable[[], float],
) -> Search:
    fired: Counter[str] = Counter()
    stopped: list[Stopped] = []
    phases: dict[str, float] = {}
    for saturation in replayed.solved:
        fired.update(saturation.fired)
        for name, seconds in saturation.seconds.items():
            phases[name] = phases.get(name, 0.0) + seconds
        stopped += saturation.stopped
    return Search(
        classes=len(egraph.leaders),
        nodes=egraph.size,
        fired=dict(sorted(fired.items())),
        pieces=replayed.pieces,
        solved=len(replayed.solved),
        seconds=clock.laps,
        phases=phases,
        stopped=tuple(dict.fromkeys(stopped)),
        price_original=original,
        price_greedy=greedy,
        price_chosen=chosen,
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

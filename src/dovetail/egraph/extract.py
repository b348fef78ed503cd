"""Extraction by the cost of the graph: a first choice, then local search with exact reference counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from dovetail.dataclass import dataclass
from dovetail.egraph.changes import Changes
from dovetail.egraph.cycles import components
from dovetail.egraph.exact import cheapest, is_small
from dovetail.egraph.first_choice import acyclic, by_shared_cost, first_choice
from dovetail.egraph.joined import OUTSIDE, Joined, cost_of
from dovetail.egraph.problem import Problem

_MOST_ROUNDS = 8
_LEAST_GAIN = 1e-12
"""As a share of the total: smaller differences are noise of adding in another order."""
_AN_OP = 1e-11
"""What an op more or less counts, as a share of the total: it decides where costs are equal, and nowhere else."""


_HOPELESS = 1.05
"""A start that is dearer by this than what was reached from another does not lead below it."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """An option for each class, and what the roots then need costs."""

    picks: tuple[int, ...]
    cost: float
    toll: float = 0.0
    ops: int = 0
    climbed: float = 0.0
    """The cost as it was kept up on the way."""


def extract(problem: Problem, starts: Sequence[Mapping[int, int]] = ()) -> Extraction:
    """Return the best that local search reaches from the choice by tree cost, and from the starting choices.

    Of a small problem, the best there is.
    """
    first = first_choice(problem)
    cheap = acyclic(problem, by_shared_cost(problem, first), first)
    search = HillClimb(problem, cheap)
    best: Extraction | None = None
    for start in starts:
        # What a start leaves open is chosen by tree cost; the first choice of all is only there to break cycles.
        search.begin(acyclic(problem, [start.get(c, p) for c, p in enumerate(cheap)], first))
        reached = search.climb()
        best = reached if best is None or _is_better(reached, best) else best
    search.begin(cheap)
    if best is None or search.cost < best.cost * _HOPELESS:
        reached = search.climb()
        best = reached if best is None or _is_better(reached, best) else best
    small = is_small(problem)
    better = cheapest(problem, best.picks, best.cost, best.toll, search.component) if small else None
    if better is None:
        return best
    search.begin(better)
    reached = search.climb()
    return reached if _is_better(reached, best) else best


def _is_better(one: Extraction, other: Extraction) -> bool:
    gain = _gain(one.cost - other.cost, one.toll - other.toll, one.ops - other.ops, other.cost)
    return gain > _LEAST_GAIN * other.cost


def _gain(cost: float, toll: float, ops: int, total: float) -> float:
    """Return the worth of a change. A larger toll has to be won back; a smaller toll is no reason for a slower run."""
    return -cost - max(toll, 0.0) - ops * _AN_OP * total


class HillClimb:
    """Hill climbing: one class takes another option, or all that can read a class do."""

    def __init__(self, problem: Problem, cheap: Sequence[int]) -> None:
        self.problem = problem
        self.cheap = cheap
        """The choice by tree cost, for classes that leave what they share."""
        self.options = problem.options
        self.picks: list[int] = []
        self.readers: list[set[int]] = []
        self.joined: Joined | None = None
        self.touched: dict[int, None] = {}
        self.cost = self.apart = self.toll = 0.0
        """Seconds of a run, those of them that are no region's, and what is done once."""
        self.ops = 0

    # Only a climb reads these; pricing single changes does without.

    @cached_property
    def component(self) -> dict[int, int]:
        return components(self.problem)

    @cached_property
    def changes(self) -> Changes:
        return Changes(self.options, self.component)

    @cached_property
    def several(self) -> list[int]:
        """The classes that have a choice."""
        return [c for c, listed in enumerate(self.options) if len(listed) > 1]

    @cached_property
    def sharing(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return each class that options of several classes read, with those classes and options."""
        readers: dict[int, dict[int, int]] = {}
        for c in self.several:
            for index, option in enumerate(self.options[c]):
                for r in option.reads:
                    readers.setdefault(r, {}).setdefault(c, index)
        return [(r, list(options_of.items())) for r, options_of in readers.items() if len(options_of) > 1]

    def begin(self, picks: Sequence[int]) -> None:
        """Start from a choice without cycles; what stands as it stood when a climb ended was tried there."""
        before, readers, were = self.picks, self.readers, self.joined
        self.picks, self.readers, self.touched = list(picks), [set() for _ in self.options], {}
        self.apart, self.toll, self.ops = 0.0, 0.0, 0
        for root in self.problem.roots:
            self._acquire(root, OUTSIDE)
        self.joined = Joined(self.problem, self.picks, self.readers)
        self.cost = self.apart + self.joined.update(reversed(self.problem.live(self.picks)))
        if were is not None:
            other = [c for c, p in enumerate(self.picks) if p != before[c] or self.readers[c] != readers[c]]
            self.changes.note(other)
            self.changes.note(self.joined.unlike(were))

    def climb(self) -> Extraction:
        """Take every change that pays until none does."""
        for _ in range(_MOST_ROUNDS):
            improved = False
            for shared, adopters in self.sharing:
                if self.changes.is_due(shared, [shared, *[c for c, _ in adopters]]):
                    improved |= self._adopt(adopters)
                    improved |= self._leave(shared, adopters)
            for c in self.several:
                if self.changes.is_due(~c, [c]):
                    improved |= self._improve(c)
            if not improved:
                break
        return Extraction(tuple(self.picks), cost_of(self.problem, self.picks), self.toll, self.ops, self.cost)

    def _adopt(self, adopters: Sequence[tuple[int, int]]) -> bool:
        """Let all live classes that can read a class do so, if that pays."""
        if sum([self.picks[c] != index and bool(self.readers[c]) for c, index in adopters]) < 2:
            return False
        return self._try(adopters)

    def _leave(self, shared: int, adopters: Sequence[tuple[int, int]]) -> bool:
        """Let all classes that read a class take their cheapest option by tree cost instead, if that pays."""
        if len(self.readers[shared]) < 2:
            return False
        leaving = [
            (c, self.cheap[c])
            for c, _ in adopters
            if c in self.readers[shared] and shared not in self.options[c][self.cheap[c]].reads
        ]
        return len(leaving) > 1 and self._try(leaving)

    def _improve(self, c: int) -> bool:
        """Give one class each option that lowers the cost."""
        improved = False
        for index in range(len(self.options[c])):
            if self.readers[c] and index != self.picks[c]:
                improved |= self._try([(c, index)])
        return improved

    def _try(self, swaps: Sequence[tuple[int, int]]) -> bool:
        """Take other options, and keep them if that pays."""
        old: list[tuple[int, int]] = []
        assert self.joined is not None
        apart, toll, ops = self.apart, self.toll, self.ops
        self.touched = {}
        fine = True
        for c, index in swaps:
            # What the ones before have made dead keeps its pick: only what is live is checked for cycles.
            if fine and self.picks[c] != index and self.readers[c]:
                old.append((c, self.picks[c]))
                self._swap(c, index)
                fine = not self._cyclic(c)
        if fine:
            change = self.apart - apart + self.joined.update(self.touched)
            gain = _gain(change, self.toll - toll, self.ops - ops, self.cost)
            # Equal choices are settled by order: what greedy fusion has comes first.
            earlier = len(swaps) == 1 and swaps[0][1] < old[0][1]
            if gain > (-_LEAST_GAIN if earlier else _LEAST_GAIN) * self.cost:
                self.cost += change
                self.changes.note(self.touched)
                self.changes.note(self.joined.changed())
                return True
        for c, index in reversed(old):
            self._swap(c, index)
        if fine:
            self.joined.undo()
        self.apart, self.toll, self.ops = apart, toll, ops
        return False

    def differing(self, c: int, index: int) -> tuple[float, float]:
        """Seconds of the kernels that differ, with another option for a class and without it; the choice stays."""
        assert self.joined is not None
        if not self.readers[c]:
            return 0.0, 0.0
        before, apart, toll, ops = self.picks[c], self.apart, self.toll, self.ops
        self.touched = {}
        self._swap(c, index)
        self.joined.update(self.touched)
        touched = list(self.touched)
        with_it, new_regions = self._costs(touched), self.joined.changed_prices()
        self._swap(c, before)
        self.joined.undo()
        without, old_regions = self._costs(touched), {root: self.joined.prices[root] for root in new_regions}
        self.apart, self.toll, self.ops = apart, toll, ops
        differ = [t for t in touched if with_it.get(t) != without.get(t)]
        return (
            sum([with_it.get(t, 0.0) for t in differ]) + sum(new_regions.values()),
            sum([without.get(t, 0.0) for t in differ]) + sum(old_regions.values()),
        )

    def _costs(self, classes: Iterable[int]) -> dict[int, float]:
        """Return the costs of those of these classes that are live and in no region."""
        live = {c: self.options[c][self.picks[c]] for c in classes if self.readers[c]}
        return {c: option.cost for c, option in live.items() if option.part is None}

    def _swap(self, c: int, index: int) -> None:
        """Take another option. What the new one reads is acquired before the old is let go."""
        old, new = self.options[c][self.picks[c]], self.options[c][index]
        self.picks[c] = index
        if not self.readers[c]:
            return
        self.touched.update(dict.fromkeys([c, *new.reads]))
        if old.part is None:
            self.apart -= old.cost
        if new.part is None:
            self.apart += new.cost
        self.toll += new.toll - old.toll
        self.ops += new.ops - old.ops
        for r in new.reads:
            if r not in old.reads:
                self._acquire(r, c)
        for r in old.reads:
            if r not in new.reads:
                self._release(r, c)

    def _acquire(self, c: int, reader: int) -> None:
        stack = [(c, reader)]
        readers, options, picks, touched = self.readers, self.options, self.picks, self.touched
        while stack:
            c, reader = stack.pop()
            readers[c].add(reader)
            touched[c] = None
            if len(readers[c]) == 1:
                option = options[c][picks[c]]
                if option.part is None:
                    self.apart += option.cost
                self.toll += option.toll
                self.ops += option.ops
                stack.extend([(r, c) for r in option.reads])

    def _release(self, c: int, reader: int) -> None:
        stack = [(c, reader)]
        readers, options, picks, touched = self.readers, self.options, self.picks, self.touched
        while stack:
            c, reader = stack.pop()
            readers[c].remove(reader)
            touched[c] = None
            if not readers[c]:
                option = options[c][picks[c]]
                if option.part is None:
                    self.apart -= option.cost
                self.toll -= option.toll
                self.ops -= option.ops
                stack.extend([(r, c) for r in option.reads])

    def _cyclic(self, start: int) -> bool:
        """Return whether a class needs itself. Only classes of one component can."""
        home = self.component.get(start)
        if home is None:
            return False
        seen: set[int] = set()
        stack = [r for r in self.options[start][self.picks[start]].reads if self.component.get(r) == home]
        while stack:
            c = stack.pop()
            if c == start:
                return True
            if c not in seen:
                seen.add(c)
                stack.extend([r for r in self.options[c][self.picks[c]].reads if self.component.get(r) == home])
        return False

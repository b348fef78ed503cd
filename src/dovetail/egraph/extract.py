"""Extraction by the cost of the graph: a first choice, then local search with exact reference counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from dovetail.egraph.problem import Problem

_MOST_ROUNDS = 8
_LEAST_GAIN = 1e-9
"""As a share of the total: smaller differences are noise of adding in another order."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """An option for each class, and what the roots then need costs."""

    picks: tuple[int, ...]
    cost: float


def extract(problem: Problem, starts: Sequence[Mapping[int, int]] = ()) -> Extraction:
    """The best that local search finds from the choice by tree cost, and from the choices given."""
    first = first_choice(problem)
    search = _Search(problem)
    found: Extraction | None = None
    for start in [*starts, None]:
        if start is None:
            picks = acyclic(problem, by_shared_cost(problem, first), first)
        else:
            picks = acyclic(problem, [start.get(c, p) for c, p in enumerate(first)], first)
        reached = search.run(picks)
        if found is None or reached.cost < found.cost * (1 - _LEAST_GAIN):
            found = reached
    assert found is not None
    return found


def first_choice(problem: Problem) -> list[int]:
    """For each class the first option all of whose classes were reached before: it can have no cycle."""
    options = problem.options
    readers: list[list[tuple[int, int]]] = [[] for _ in options]
    missing: dict[tuple[int, int], int] = {}
    picks = [-1] * len(options)
    ready: deque[tuple[int, int]] = deque()
    for c, listed in enumerate(options):
        for index, option in enumerate(listed):
            missing[c, index] = len(option.reads)
            if not option.reads:
                ready.append((c, index))
            for r in option.reads:
                readers[r].append((c, index))
    while ready:
        c, index = ready.popleft()
        if picks[c] >= 0:
            continue
        picks[c] = index
        for reader in readers[c]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return [max(p, 0) for p in picks]


def by_shared_cost(problem: Problem, first: Sequence[int]) -> list[int]:
    """The cheapest option of each class by tree cost, where a class costs each of its readers an equal share.

    Without sharing, a chain of residual adds would double the cost at every layer, and no number could hold it.
    """
    options = problem.options
    shares = [0] * len(options)
    for c in problem.live(first):
        for r in options[c][first[c]].reads:
            shares[r] += 1
    picks, cost = list(first), [inf] * len(options)
    order = _reached(problem, first)
    for _ in range(2):
        for c in order:
            best = inf
            for index, option in enumerate(options[c]):
                total = option.cost
                for r in option.reads:
                    total += cost[r] / max(shares[r], 1)
                if total < best:
                    best, picks[c] = total, index
            cost[c] = best
    return picks


def _reached(problem: Problem, first: Sequence[int]) -> list[int]:
    """All classes, each after those that its first choice reads."""
    every = Problem(problem.options, tuple(c for c, listed in enumerate(problem.options) if listed))
    return every.live(first)


def acyclic(problem: Problem, picks: list[int], first: Sequence[int]) -> list[int]:
    """Picks with every cycle broken by the first choice of a class on it, those that no root needs included."""
    options = problem.options
    state = bytearray(len(options))
    for root in range(len(options)):
        stack = [root]
        while stack:
            c = stack[-1]
            if state[c] == 2:
                stack.pop()
                continue
            if state[c] == 0:
                state[c] = 1
            again = False
            for r in options[c][picks[c]].reads:
                if state[r] == 0:
                    stack.append(r)
                    again = True
                    break
                if state[r] == 1:
                    _break(picks, first, stack, r, state)
                    again = True
                    break
            if not again:
                state[c] = 2
                stack.pop()
    return picks


def _break(picks: list[int], first: Sequence[int], stack: list[int], back: int, state: bytearray) -> None:
    """Open the cycle that ends where the stack has a class already, and go back to before it."""
    at = stack.index(back)
    loop = stack[at:]
    changed = next(c for c in loop if picks[c] != first[c])
    picks[changed] = first[changed]
    for c in loop:
        state[c] = 0
    del stack[at + 1 :]


class _Search:
    """Hill climbing: one class takes another option, or all that can read a class do."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.options = problem.options
        self.component = components(problem)
        self.several = [c for c, listed in enumerate(self.options) if len(listed) > 1]
        self.sharing = self._sharing(self.several)
        self.picks: list[int] = []
        self.count: list[int] = []
        self.cost = 0.0

    def run(self, picks: Sequence[int]) -> Extraction:
        """Climb from a choice without cycles."""
        self.picks, self.count = list(picks), [0] * len(self.options)
        self.cost = sum(self._acquire(root) for root in self.problem.roots)
        for _ in range(_MOST_ROUNDS):
            improved = False
            for adopters in self.sharing:
                improved |= self._adopt(adopters)
            for c in self.several:
                improved |= self._improve(c)
            if not improved:
                break
        return Extraction(tuple(self.picks), self.problem.cost(self.picks))

    def _sharing(self, several: Sequence[int]) -> list[list[tuple[int, int]]]:
        """For each class that options of several classes read: those classes and options."""
        readers: dict[int, dict[int, int]] = {}
        for c in several:
            for index, option in enumerate(self.options[c]):
                for r in option.reads:
                    readers.setdefault(r, {}).setdefault(c, index)
        return [list(found.items()) for found in readers.values() if len(found) > 1]

    def _adopt(self, adopters: Sequence[tuple[int, int]]) -> bool:
        """All live classes that can read a class do, if that pays."""
        if sum([self.picks[c] != index and self.count[c] > 0 for c, index in adopters]) < 2:
            return False
        old: list[tuple[int, int]] = []
        change = 0.0
        fine = True
        for c, index in adopters:
            # What the ones before have made dead keeps its pick: only what is live is checked for cycles.
            if fine and self.picks[c] != index and self.count[c]:
                old.append((c, self.picks[c]))
                change += self._swap(c, index)
                fine = not self._cyclic(c)
        if fine and change < -_LEAST_GAIN * self.cost:
            self.cost += change
            return True
        for c, index in reversed(old):
            self._swap(c, index)
        return False

    def _improve(self, c: int) -> bool:
        """One class takes the option that lowers the cost most."""
        if not self.count[c]:
            return False
        improved = False
        for index in range(len(self.options[c])):
            old = self.picks[c]
            if index == old:
                continue
            change = self._swap(c, index)
            if change < -_LEAST_GAIN * self.cost and not self._cyclic(c):
                self.cost += change
                improved = True
            else:
                self._swap(c, old)
        return improved

    def _swap(self, c: int, index: int) -> float:
        """Take another option; what that changes. What the new one reads is acquired before the old is let go."""
        old, new = self.options[c][self.picks[c]], self.options[c][index]
        self.picks[c] = index
        if not self.count[c]:
            return 0.0
        change = new.cost - old.cost
        for r in new.reads:
            change += self._acquire(r)
        for r in old.reads:
            change -= self._release(r)
        return change

    def _acquire(self, c: int) -> float:
        total = 0.0
        stack = [c]
        count, options, picks = self.count, self.options, self.picks
        while stack:
            c = stack.pop()
            count[c] += 1
            if count[c] == 1:
                option = options[c][picks[c]]
                total += option.cost
                stack.extend(option.reads)
        return total

    def _release(self, c: int) -> float:
        total = 0.0
        stack = [c]
        count, options, picks = self.count, self.options, self.picks
        while stack:
            c = stack.pop()
            count[c] -= 1
            if not count[c]:
                option = options[c][picks[c]]
                total += option.cost
                stack.extend(option.reads)
        return total

    def _cyclic(self, start: int) -> bool:
        """Whether a class needs itself. Only classes of one component can."""
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


def components(problem: Problem) -> dict[int, int]:
    """The classes that can need each other, by the strongly connected component that they are in."""
    options = problem.options
    reads = [tuple(dict.fromkeys(r for o in listed for r in o.reads)) for listed in options]
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_path: set[int] = set()
    path: list[int] = []
    found: dict[int, int] = {}
    for root in problem.roots:
        work = [(root, 0)] if root not in index else []
        while work:
            c, at = work.pop()
            if at == 0:
                index[c] = low[c] = len(index)
                path.append(c)
                on_path.add(c)
            descend = False
            for position in range(at, len(reads[c])):
                r = reads[c][position]
                if r not in index:
                    work += [(c, position + 1), (r, 0)]
                    descend = True
                    break
                if r in on_path:
                    low[c] = min(low[c], index[r])
            if descend:
                continue
            if low[c] == index[c]:
                at = path.index(c) if path[-1] != c else len(path) - 1
                members = path[at:]
                del path[at:]
                on_path.difference_update(members)
                if len(members) > 1:
                    found.update(dict.fromkeys(members, c))
            if work:
                above = work[-1][0]
                low[above] = min(low[above], low[c])
    return found

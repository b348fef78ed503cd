"""First choices for a search: by the order in which classes are reached, and by tree cost; cycles are broken."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from dovetail.egraph.problem import Problem


def first_choice(problem: Problem) -> list[int]:
    """Return for each class the first option all of whose classes were reached before: it can have no cycle."""
    options = problem.options
    readers: list[list[tuple[int, int]]] = [[] for _ in options]
    missing = [[len(option.reads) for option in listed] for listed in options]
    picks = [-1] * len(options)
    ready: deque[tuple[int, int]] = deque()
    for c, listed in enumerate(options):
        for index, option in enumerate(listed):
            if not option.reads:
                ready.append((c, index))
            for r in option.reads:
                readers[r].append((c, index))
    while ready:
        c, index = ready.popleft()
        if picks[c] >= 0:
            continue
        picks[c] = index
        for reader, at in readers[c]:
            missing[reader][at] -= 1
            if not missing[reader][at]:
                ready.append((reader, at))
    return [max(p, 0) for p in picks]


def by_shared_cost(problem: Problem, first: Sequence[int]) -> list[int]:
    """Return the cheapest option of each class by tree cost, where a class costs each of its readers an equal share.

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
                total = option.cost + option.toll
                for r in option.reads:
                    total += cost[r] / max(shares[r], 1)
                if total < best:
                    best, picks[c] = total, index
            cost[c] = best
    return picks


def _reached(problem: Problem, first: Sequence[int]) -> list[int]:
    """Return all classes, each after those that its first choice reads."""
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


__all__ = ["acyclic", "by_shared_cost", "first_choice"]

"""Extraction without a doubt, for problems that are small enough: every choice that could be cheaper is looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dovetail.egraph.cycles import components
from dovetail.egraph.joined import cost_of
from dovetail.egraph.problem import Option, Problem

MOST_CLASSES = 12
"""Problems with more classes that leave a choice are left to local search."""
_MOST_STEPS = 20_000
"""The number of steps after which local search takes over."""


class _Partial(NamedTuple):
    """Options for some classes, the classes that are needed and still open, and what is decided so far costs."""

    picks: dict[int, int]
    open: tuple[int, ...]
    cost: float
    toll: float


def is_small(problem: Problem) -> bool:
    """Return whether the choices are few enough to enumerate."""
    return sum([len(listed) > 1 for listed in problem.options]) <= MOST_CLASSES


def cheapest(
    problem: Problem, known: Sequence[int], cost: float, toll: float, component: Mapping[int, int] | None = None
) -> tuple[int, ...] | None:
    """Return the picks of the cheapest choice without a cycle; None where `known` is as cheap, or there are too many.

    Branch and bound: what is decided and the least that is open must stay below the best choice so far. `component` is
    what `components` says of the problem, where it is known.
    """
    home = components(problem) if component is None else component
    least = [min([_alone(option) for option in listed], default=0.0) for listed in problem.options]
    best_picks: tuple[int, ...] | None = None
    best = cost
    stack = [_Partial({}, problem.roots, 0.0, 0.0)]
    steps = 0
    while stack:
        partial, taken = _forced(problem, stack.pop(), home)
        steps += 1 + taken
        if steps > _MOST_STEPS:
            return None
        if partial is None:
            continue
        worth = partial.cost + max(partial.toll - toll, 0.0)
        if worth + sum([least[c] for c in partial.open]) >= best:
            continue
        if partial.open:
            stack += _decided(problem, partial, home)
            continue
        picks = tuple([partial.picks.get(c, pick) for c, pick in enumerate(known)])
        total = cost_of(problem, picks) + max(partial.toll - toll, 0.0)
        if total < best:
            best, best_picks = total, picks
    return best_picks


def _forced(problem: Problem, partial: _Partial, home: Mapping[int, int]) -> tuple[_Partial | None, int]:
    """Return the choice after the classes that leave no choice, and their number; None where they close a cycle.

    A partial choice belongs to its caller alone: its picks are extended in place, because most classes are forced.
    """
    open_, waiting = deque(partial.open), set(partial.open)
    picks, cost, toll = partial.picks, partial.cost, partial.toll
    taken = 0
    while open_ and len(problem.options[open_[0]]) == 1:
        c = open_.popleft()
        waiting.discard(c)
        (option,) = problem.options[c]
        taken += 1
        if _closes(problem, picks, option.reads, c, home):
            return None, taken
        for read in dict.fromkeys(option.reads):
            if read not in picks and read not in waiting:
                open_.append(read)
                waiting.add(read)
        picks[c] = 0
        cost, toll = cost + _alone(option), toll + option.toll
    return (_Partial(picks, tuple(open_), cost, toll) if taken else partial), taken


def _decided(problem: Problem, partial: _Partial, home: Mapping[int, int]) -> list[_Partial]:
    """Return the choice with each option of the first open class that closes no cycle, the cheapest last."""
    c, *later = partial.open
    choices: list[_Partial] = []
    for index, option in enumerate(problem.options[c]):
        if _closes(problem, partial.picks, option.reads, c, home):
            continue
        fresh = [r for r in option.reads if r not in partial.picks and r not in later]
        cost, toll = partial.cost + _alone(option), partial.toll + option.toll
        choices.append(_Partial({**partial.picks, c: index}, (*later, *fresh), cost, toll))
    return sorted(choices, key=lambda p: -p.cost - p.toll)


def _alone(option: Option) -> float:
    """Return the least that it adds to a run: what is joined with others may be free."""
    return option.cost if option.part is None else 0.0


def _closes(
    problem: Problem, picks: Mapping[int, int], starts: Sequence[int], goal: int, home: Mapping[int, int]
) -> bool:
    """Return whether a path of decided options leads from what a class reads back to it; a cycle stays in one
    component.
    """
    own = home.get(goal)
    if own is None:
        return goal in starts
    seen: set[int] = set()
    stack = list(starts)
    while stack:
        c = stack.pop()
        if c == goal:
            return True
        if c not in seen and home.get(c) == own:
            seen.add(c)
            stack += problem.options[c][picks[c]].reads if c in picks else ()
    return False

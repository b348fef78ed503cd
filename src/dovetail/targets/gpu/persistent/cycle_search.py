"""Autotuning of the cycles that a persistent kernel waits: coordinate descent, by runs that take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Cycles

Counts: TypeAlias = tuple[int, ...]
"""A number for each of the cycles of a kernel, in the order of its arguments."""
Timed: TypeAlias = Callable[[Counts], float]
"""The seconds of a run, or of several, with some counts."""

MOST_CYCLES = 1 << 20
"""More is a number that no search has found: half a millisecond before each level."""
_PAUSES = ((-400, -200, 200, 400), (-100, 100))
"""Cycles that each round of the search adds to a pause."""
_PACES = ((0.84, 0.92, 1.08, 1.16), (0.96, 1.04))
"""What it multiplies the cycles between copies with."""
_TURNS, _MORE_TURNS = 7, 15
"""Runs of each of a few counts, in turns, and at the end."""
_BETTER = 0.999
"""Counts are taken from this part of the time on: less is within what runs differ by."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found, and the part of the time that it takes, against the estimates: 1 where these stay."""

    counts: Counts
    ratio: float


def search(cycles: Sequence[Cycles], timed: Timed) -> Found:
    """The counts with the shortest time, from the estimates on."""
    estimates = best = tuple([one.count for one in cycles])
    for number in range(len(_PAUSES)):
        for at, one in enumerate(cycles):
            if one.passes > 1:  # one wait of a run is less than runs differ by
                tried = [(*best[:at], count, *best[at + 1 :]) for count in _near(one, best[at], number)]
                ratios = compared((best, *tried), timed, _TURNS)[1:]
                if min(ratios) < _BETTER:
                    best = tried[ratios.index(min(ratios))]
    ratio = 1.0 if best == estimates else compared((estimates, best), timed, _MORE_TURNS)[1]
    return Found(best, ratio) if ratio < _BETTER else Found(estimates, 1.0)


def _near(one: Cycles, count: int, number: int) -> list[int]:
    """The counts that a round of the search tries instead of one."""
    moved = [round(count * by) for by in _PACES[number]] if one.nbytes else [count + by for by in _PAUSES[number]]
    return [x for x in moved if 0 <= x <= MOST_CYCLES]


def compared(every: Sequence[Counts], timed: Timed, turns: int) -> list[float]:
    """The time of each as a part of that of the first: the median of several turns, since clocks change meanwhile."""
    rounds = [[timed(counts) for counts in every] for _ in range(turns)]
    return [_median([times[at] / max(times[0], 1e-9) for times in rounds]) for at in range(len(every))]


def _median(numbers: Sequence[float]) -> float:
    """That of Python's statistics, whose import takes longer than a first call has."""
    ordered, half = sorted(numbers), len(numbers) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


__all__ = ["MOST_CYCLES", "Counts", "Found", "Timed", "compared", "search"]

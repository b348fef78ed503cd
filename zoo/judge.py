"""How far outputs lie from the float64 reference, ours and a peer's side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Runs: TypeAlias = Sequence[Mapping[str, Array]]
"""The outputs of several runs, each by name."""
T = TypeVar("T")

MOST = 2.0
"""Our error may be this many times the peer's."""
FLOOR = 4 * float(np.finfo(np.float32).eps)
"""Below this, errors are a few units in the last place, and whose is larger is chance."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of one output over all runs: the largest difference from the reference, by its largest value."""

    output: str
    ours: float
    theirs: float | None
    """None where there is no peer."""
    plausible: float
    """A peer that is farther away than this means something else by the model than we do."""

    @property
    def limit(self) -> float:
        return max(FLOOR, MOST * (self.theirs or 0.0))

    @property
    def holds(self) -> bool:
        return self.ours <= self.limit and (self.theirs is None or self.theirs <= self.plausible)


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest difference over the largest value, of all runs; infinite where shapes differ or numbers are none."""
    apart = most = 0.0
    for x, y in zip(found, wanted, strict=True):
        if x.shape != y.shape or not np.isfinite(x).all():
            return float("inf")
        apart = max(apart, float(np.abs(x.astype(np.float64) - y).max(initial=0.0)))
        most = max(most, float(np.abs(y).max(initial=0.0)))
    return apart / most if most > 0 else apart


def verdicts(ours: Runs, theirs: Runs | None, wanted: Runs, plausible: float) -> list[Verdict]:
    """One for each output."""
    return [
        Verdict(
            name,
            error([run[name] for run in ours], [run[name] for run in wanted]),
            None if theirs is None else error([run[name] for run in theirs], [run[name] for run in wanted]),
            plausible,
        )
        for name in wanted[0]
    ]


def timed(work: Callable[[], T], *, most_seconds: float = 2.0, most_runs: int = 9) -> tuple[T, float]:
    """The result, and the median of a few runs after a first one."""
    result = work()
    found: list[float] = []
    while not found or (len(found) < most_runs and sum(found) < most_seconds):
        started = perf_counter()
        work()
        found.append(perf_counter() - started)
    return result, float(np.median(found))

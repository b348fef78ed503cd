"""How far outputs lie from the float64 reference, ours and a peer's side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")

MOST = 2.0
"""Our error may be so many times the peer's."""
FLOOR = 8 * float(np.finfo(np.float32).eps)
"""Below this, errors are a few units in the last place, and whose is larger is chance."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of one output: the largest difference from the reference, relative to its largest value."""

    output: str
    ours: float
    theirs: float | None
    """None where there is no peer."""

    @property
    def limit(self) -> float:
        return max(FLOOR, MOST * (self.theirs or 0.0))

    @property
    def holds(self) -> bool:
        return self.ours <= self.limit


def error(found: Array, wanted: Array) -> float:
    """The largest difference relative to the largest value; infinite where shapes differ or numbers are none."""
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    apart = np.abs(found.astype(np.float64) - wanted).max(initial=0.0)
    most = np.abs(wanted).max(initial=0.0)
    return float(apart / most if most > 0 else apart)


def verdicts(
    ours: Mapping[str, Array], theirs: Mapping[str, Array] | None, wanted: Mapping[str, Array]
) -> list[Verdict]:
    """One for each output."""
    return [
        Verdict(name, error(ours[name], array), None if theirs is None else error(theirs[name], array))
        for name, array in wanted.items()
    ]


def timed(work: Callable[[], T], *, most_seconds: float = 2.0, most_runs: int = 9) -> tuple[T, float]:
    """The result, and the median of a few runs behind a first one."""
    result = work()
    found: list[float] = []
    while not found or (len(found) < most_runs and sum(found) < most_seconds):
        started = perf_counter()
        work()
        found.append(perf_counter() - started)
    return result, float(np.median(found))

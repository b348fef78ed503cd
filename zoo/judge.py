"""How far outputs are from the float64 reference, ours and a peer's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Runs: TypeAlias = Sequence[Mapping[str, Array]]
"""The outputs of several runs, each by name."""

MOST = 2.0
"""Our error may be this many times the peer's."""
FLOOR = 4 * float(np.finfo(np.float32).eps)
"""Below this, errors are a few units in the last place, and whose is larger is chance."""
MANY_RUNS = 8
"""Runs from which typical errors are compared: the largest of few runs is chance where a run is ill-conditioned."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of one output over all runs: the largest difference from the reference, by its largest value."""

    output: str
    ours: float
    theirs: float
    plausible: float
    """A peer that is farther away than this means something else by the model than we do."""
    runs: int = 1
    typical: float = 0.0
    """The geometric mean of the errors of single runs."""
    peer_typical: float = 0.0

    @property
    def limit(self) -> float:
        return max(FLOOR, MOST * self.theirs)

    @property
    def doubtful(self) -> bool:
        """Whether our largest error is too large: of few runs that may be chance."""
        return self.ours > self.limit

    @property
    def compared(self) -> tuple[float, float]:
        """Our error and the peer's that the verdict compares: typical ones where the largest is doubtful."""
        typically = self.doubtful and self.runs >= MANY_RUNS
        return (self.typical, self.peer_typical) if typically else (self.ours, self.theirs)

    @property
    def holds(self) -> bool:
        """Whether we are as near as the peer: in the worst run, or typically over many runs."""
        mine, peer = self.compared
        near = max(self.theirs, self.ours if self.doubtful else 0.0) <= self.plausible
        return near and mine <= max(FLOOR, MOST * peer)

    def __str__(self) -> str:
        told = "" if self.holds else "  TOO FAR" if self.ours > self.limit else "  THE PEER IS TOO FAR"
        typical = f"; typically {self.typical:.2e} and {self.peer_typical:.2e} over {self.runs} runs"
        return (
            f"{self.output}: error {self.ours:.2e}, onnxruntime {self.theirs:.2e}, limit {self.limit:.2e}"
            f"{typical if self.runs >= MANY_RUNS else ''}{told}"
        )


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest difference over the largest value, of all runs; infinite where shapes differ or numbers are none."""
    apart = most = 0.0
    for x, y in zip(found, wanted, strict=True):
        if x.shape != y.shape or not np.isfinite(x).all():
            return float("inf")
        apart = max(apart, float(np.abs(x.astype(np.float64) - y).max(initial=0.0)))
        most = max(most, float(np.abs(y).max(initial=0.0)))
    return apart / most if most > 0 else apart


def typical(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The geometric mean of the errors of single runs; errors below the rounding of one number count as that."""
    least = float(np.finfo(np.float32).eps) / 2
    errors = [max(error([x], [y]), least) for x, y in zip(found, wanted, strict=True)]
    return float(np.exp(np.mean(np.log(errors))))


def verdicts(ours: Runs, theirs: Runs, wanted: Runs, plausible: float) -> list[Verdict]:
    """One for each output."""
    found: list[Verdict] = []
    for name in wanted[0]:
        mine, peer, right = ([run[name] for run in runs] for runs in (ours, theirs, wanted))
        means = typical(mine, right), typical(peer, right)
        found.append(Verdict(name, error(mine, right), error(peer, right), plausible, len(right), *means))
    return found

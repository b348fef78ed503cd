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


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of one output over all runs: the largest difference from the reference, by its largest value."""

    output: str
    ours: float
    theirs: float
    plausible: float
    """A peer that is farther away than this means something else by the model than we do."""

    @property
    def limit(self) -> float:
        return max(FLOOR, MOST * self.theirs)

    @property
    def holds(self) -> bool:
        return self.ours <= self.limit and self.theirs <= self.plausible

    def __str__(self) -> str:
        told = "" if self.holds else "  TOO FAR" if self.ours > self.limit else "  THE PEER IS TOO FAR"
        return f"{self.output}: error {self.ours:.2e}, onnxruntime {self.theirs:.2e}, limit {self.limit:.2e}{told}"


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest difference over the largest value, of all runs; infinite where shapes differ or numbers are none."""
    apart = most = 0.0
    for x, y in zip(found, wanted, strict=True):
        if x.shape != y.shape or not np.isfinite(x).all():
            return float("inf")
        apart = max(apart, float(np.abs(x.astype(np.float64) - y).max(initial=0.0)))
        most = max(most, float(np.abs(y).max(initial=0.0)))
    return apart / most if most > 0 else apart


def verdicts(ours: Runs, theirs: Runs, wanted: Runs, plausible: float) -> list[Verdict]:
    """One for each output."""
    return [
        Verdict(
            name,
            error([run[name] for run in ours], [run[name] for run in wanted]),
            error([run[name] for run in theirs], [run[name] for run in wanted]),
            plausible,
        )
        for name in wanted[0]
    ]

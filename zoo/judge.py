"""How far outputs are from the float64 reference, ours and a peer's, over many inputs.

The error of one run is chance: it is made of roundings, and the input decides how much they grow. Both runtimes get
the same input, so the quotient of their errors keeps the roundings alone. The *typical* error is the geometric mean
over the runs of the root mean square over an output's numbers; its quotient estimates how much less accurate we are,
whatever the inputs are like. A mean hides one bad run among many, so the *largest* error is judged too.

Both limits are twice what the peer has, and the second also what chance adds to it. Of two equally accurate runtimes
the quotient of typical errors stays below 2, and that of largest errors below 8, in 999 of 1000 samples of MOST_RUNS
runs: also where an output is one number, and where inputs make errors grow by factors that spread over e² (a test
draws such samples).
"""

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
CHANCE_OF_LARGEST = 8.0
"""What chance adds to the quotient of two largest errors."""
FLOOR, LARGEST_FLOOR = 1.0, 4.0
"""Units in the last place up to which a typical and a largest error are good; to round each number once costs 0.3."""
MOST_RUNS = 64
FEW_NUMBERS = 8
"""An output of fewer numbers than this says little in one run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of one output over all runs, as shares of its largest value."""

    output: str
    ours: float
    """The largest of any number in any run."""
    theirs: float
    plausible: float
    """A peer that is farther away than this means something else by the model than we do."""
    runs: int = 1
    typical: float = 0.0
    """The geometric mean over the runs of the root mean square over the numbers."""
    peer_typical: float = 0.0
    unit: float = float(np.finfo(np.float32).eps)
    """One unit in the last place of the largest value."""

    @property
    def limit(self) -> float:
        """Of the typical error."""
        return max(FLOOR * self.unit, MOST * self.peer_typical)

    @property
    def largest_limit(self) -> float:
        return max(LARGEST_FLOOR * self.unit, MOST * CHANCE_OF_LARGEST * self.theirs)

    @property
    def share(self) -> float:
        """Our typical error by the peer's; errors below a quarter of a unit count as that."""
        least = self.unit / 4
        return max(self.typical, least) / max(self.peer_typical, least)

    @property
    def near(self) -> bool:
        """Whether typical and largest errors are within their limits."""
        return self.typical <= self.limit and self.ours <= self.largest_limit

    @property
    def holds(self) -> bool:
        """Whether we are as near as the peer, and both mean the same model."""
        return self.near and max(self.ours, self.theirs) <= self.plausible

    def __str__(self) -> str:
        told = "" if self.holds else "  TOO FAR" if not self.near else "  NOT PLAUSIBLE"
        return (
            f"{self.output}: typical error {self.typical:.2e}, onnxruntime {self.peer_typical:.2e}, "
            f"limit {self.limit:.2e}; largest {self.ours:.2e}, onnxruntime {self.theirs:.2e}, "
            f"limit {self.largest_limit:.2e}; {self.runs} runs{told}"
        )


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest difference over the largest value, of all runs; infinite where shapes differ or numbers are none."""
    apart = [_apart(x, y) for x, y in zip(found, wanted, strict=True)]
    if any(difference is None for difference in apart):
        return float("inf")
    most = max((float(np.abs(d).max(initial=0.0)) for d in apart if d is not None), default=0.0)
    return most / _scale(wanted)


def typical(found: Sequence[Array], wanted: Sequence[Array], unit: float) -> float:
    """The geometric mean over the runs of the root mean square; errors below a quarter of a unit count as that."""
    logs: list[float] = []
    scale = _scale(wanted)
    for x, y in zip(found, wanted, strict=True):
        apart = _apart(x, y)
        if apart is None:
            return float("inf")
        squares = float(np.square(apart).mean()) if apart.size else 0.0
        logs.append(float(np.log(max(np.sqrt(squares) / scale, unit / 4))))
    return float(np.exp(np.mean(logs)))


def verdicts(ours: Runs, theirs: Runs, wanted: Runs, plausible: float) -> list[Verdict]:
    """One for each output."""
    found: list[Verdict] = []
    for name in wanted[0]:
        mine, peer, right = ([run[name] for run in runs] for runs in (ours, theirs, wanted))
        unit = unit_of(mine[0])
        means = typical(mine, right, unit), typical(peer, right, unit)
        found.append(Verdict(name, error(mine, right), error(peer, right), plausible, len(right), *means, unit))
    return found


def unit_of(output: Array) -> float:
    """One unit in the last place of 1, in the dtype of an output; integers are computed from floats."""
    precise = output.dtype if output.dtype.kind == "f" else np.dtype(np.float32)
    return float(np.finfo(precise).eps)


def _apart(x: Array, y: Array) -> Array | None:
    """The differences in float64; none where shapes differ or a number is none."""
    if x.shape != y.shape or not np.isfinite(x).all():
        return None
    return np.abs(x.astype(np.float64) - y)


def _scale(wanted: Sequence[Array]) -> float:
    most = max((float(np.abs(y).max(initial=0.0)) for y in wanted), default=0.0)
    return most if most > 0 else 1.0

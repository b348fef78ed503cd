"""What was measured of a program, kernel by kernel, in the words of the graph as written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A time: the median of so many measurements, and half of what lies between the quartiles."""

    seconds: float
    spread: float
    count: int


def spread_of(seconds: Sequence[float]) -> Spread:
    """The median and the spread of measurements."""
    if len(seconds) < 2:
        return Spread(seconds[0], 0.0, len(seconds))
    low, _, high = statistics.quantiles(seconds, n=4)
    return Spread(statistics.median(seconds), (high - low) / 2, len(seconds))


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel of the run phase, by its name in the report's list of kernels."""

    kernel: str
    op: str
    type: str
    nodes: tuple[str, ...]
    """The nodes as written that it computes, by name."""
    where: tuple[str, ...]
    """The user's words for them."""
    seconds: float
    """The median."""
    spread: float
    predicted_seconds: float
    roofline: float
    """The share of what the machine can do at most with this work and traffic."""
    on_host: bool
    flops: int
    bytes: int
    form: str = ""
    """Which of the target's kernels for this op serves it, where there are several."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A program as it ran: the whole, and every kernel of it."""

    runs: int
    threads: int
    seconds: float
    """The median of whole runs, as a caller sees them."""
    spread: float
    roofline: float
    """The share of what the machine can do at most with the work and the traffic of the whole model."""
    host_seconds: float
    """Of kernels that ran as NumPy on the host."""
    overhead_seconds: float
    """What a run takes beside its kernels: handing out steps, checking inputs, copying outputs."""
    calibration: str
    sizes: dict[str, int]
    """What symbols stood for."""
    kernels: tuple[KernelTime, ...]
    """In the order in which they ran."""

    @property
    def host_share(self) -> float:
        """The share of a run that kernels on the host take."""
        return self.host_seconds / self.seconds if self.seconds else 0.0


__all__ = ["KernelTime", "Measured", "Spread", "spread_of"]

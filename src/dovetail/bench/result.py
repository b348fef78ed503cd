"""The results of one workload: times, starts and memory of every peer, and how near to the machine's limit we are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from dovetail.dataclass import dataclass

MODULE = "dovetail-module"
"""The peer that is dovetail itself, on a torch module."""
EXPORTED = "dovetail-onnx"
"""The peer that is dovetail itself, on the ONNX file that torch exports of a module."""


@dataclass(slots=True)
class Timed:
    """One peer on one workload. Times are in seconds, memory in bytes."""

    peer: str
    first: float
    """To prepare the case and run it once, in a process that finds nothing kept from before."""
    warm: float | None = None
    """The same in a second process, which finds what the first has kept."""
    peak: int = 0
    """How much the first process grew by that at most."""
    kept: int = 0
    """How much it had grown in the end."""
    deviation: float = 0.0
    """The largest difference of its results from ours, as a share of the largest result."""
    runs: list[float] = field(default_factory=list[float])

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """Half of the interquartile range, as a share of the median."""
        low, _, high = statistics.quantiles(self.runs, n=4)
        return (high - low) / 2 / self.median

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers, without every single run."""
        return {
            "peer": self.peer,
            "median": self.median,
            "spread": self.spread,
            "best": min(self.runs),
            "runs": len(self.runs),
            "first": self.first,
            "warm": self.warm,
            "peak_bytes": self.peak,
            "kept_bytes": self.kept,
            "deviation": self.deviation,
        }


@dataclass(frozen=True, slots=True)
class Peak:
    """What the machine can do in a second at most: floating-point operations, and bytes read from main memory."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Floor:
    """What a workload has to do at least, and what the machine showed in each round of the same run, and at best."""

    flops: float
    bytes: float
    shown: tuple[Peak, ...]
    best: Peak

    @property
    def usual(self) -> Peak:
        """The median of all rounds."""
        return Peak(statistics.median(p.flops for p in self.shown), statistics.median(p.bytes for p in self.shown))

    def seconds(self, peak: Peak) -> float:
        """Return the slower of computing and of reading."""
        return max(self.flops / peak.flops, self.bytes / peak.bytes)

    @property
    def bound(self) -> str:
        """Which of the two decides."""
        peak = self.usual
        return "bandwidth" if self.bytes / peak.bytes > self.flops / peak.flops else "multiply-adds"


@dataclass(frozen=True, slots=True)
class Result:
    """A workload on n threads, for all peers; ours comes first."""

    workload: str
    threads: int
    timed: tuple[Timed, ...]
    floor: Floor
    refused: Mapping[str, str]
    """Peers that did not run it, or gave other results, and why."""

    @property
    def ours(self) -> Timed:
        return self.timed[0]

    @property
    def best(self) -> Timed | None:
        """The fastest peer that is not dovetail itself."""
        others = (t for t in self.timed[1:] if t.peer not in (MODULE, EXPORTED))
        return min(others, key=lambda t: t.median, default=None)

    @property
    def module_ratio(self) -> float | None:
        """Our time on the ONNX file over our time on the same network as a torch module, whichever of them is asked."""
        for timed in self.timed:
            if timed.peer == MODULE:
                return self.ours.median / timed.median
            if timed.peer == EXPORTED:
                return timed.median / self.ours.median
        return None

    @property
    def ratio(self) -> float | None:
        """The best peer's time over ours."""
        return self.best.median / self.ours.median if self.best is not None else None

    @property
    def limit(self) -> float:
        """The share of what the machine can do at most that we reach, both as they usually are."""
        return self.floor.seconds(self.floor.usual) / self.ours.median

    @property
    def limit_at_best(self) -> float:
        """The same of the shortest run and the highest peak."""
        return self.floor.seconds(self.floor.best) / min(self.ours.runs)

    @property
    def line(self) -> str:
        best = self.best.peer if self.best is not None else "none"
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else "none"
        return (
            f"bench {self.workload} threads={self.threads} ratio={ratio} best_peer={best}"
            f" ms={self.ours.median * 1e3:.3g} limit={self.limit:.2f}"
            f"{'' if self.module_ratio is None else f' module={self.module_ratio:.2f}'}"
        )

    def as_dict(self) -> dict[str, Any]:
        usual, best = self.floor.usual, self.floor.best
        return {
            "workload": self.workload,
            "threads": self.threads,
            "ratio": self.ratio,
            "module_ratio": self.module_ratio,
            "best_peer": self.best.peer if self.best is not None else None,
            "limit": self.limit,
            "limit_at_best": self.limit_at_best,
            "bound": self.floor.bound,
            "flops": self.floor.flops,
            "weight_bytes": self.floor.bytes,
            "flops_per_second": usual.flops,
            "bytes_per_second": usual.bytes,
            "best_flops_per_second": best.flops,
            "best_bytes_per_second": best.bytes,
            "rounds": len(self.floor.shown),
            "peers": [timed.as_dict() for timed in self.timed],
            "refused": dict(self.refused),
        }

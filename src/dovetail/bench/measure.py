"""Interleaved measurements: in every round each peer runs, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from dovetail.bench.peers import OURS, Peer, Run
from dovetail.bench.workloads import WORKLOADS, feeds_for, floor_of
from dovetail.errors import OptionError
from dovetail.ir.literal import Array
from dovetail.targets.cpu.limits import Limits, limits

ROUNDS = 7
"""As many rounds at least, however short the time is."""


@dataclass(slots=True)
class Timed:
    """One peer on one workload: seconds to prepare and run it once, and of every run after that."""

    peer: str
    first: float
    runs: list[float] = field(default_factory=list[float])
    deviation: float = 0.0
    """The largest difference of its results from ours, as a share of the largest result."""

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """Half of what lies between the quartiles, as a share of the median."""
        low, _, high = statistics.quantiles(self.runs, n=4)
        return (high - low) / 2 / self.median


@dataclass(frozen=True, slots=True)
class Result:
    """A workload on so many threads, for all peers; ours comes first."""

    workload: str
    threads: int
    timed: tuple[Timed, ...]
    limit: float
    """The share of what the machine can do at most that we reach."""
    refused: Mapping[str, str]

    @property
    def ours(self) -> Timed:
        return self.timed[0]

    @property
    def best(self) -> Timed | None:
        return min(self.timed[1:], key=lambda t: t.median, default=None)

    @property
    def ratio(self) -> float:
        """The best peer's time over ours."""
        return self.best.median / self.ours.median if self.best is not None else float("nan")

    @property
    def line(self) -> str:
        best = self.best.peer if self.best is not None else "none"
        return (
            f"bench {self.workload} threads={self.threads} ratio={self.ratio:.2f} best_peer={best}"
            f" ms={self.ours.median * 1e3:.3g} limit={self.limit:.2f}"
        )


def bench(workload: str, threads: int, peers: Sequence[Peer], seconds: float) -> Result:
    """Measure one workload."""
    if workload not in WORKLOADS:
        raise OptionError(f"there is no workload {workload!r}", hint=f"there are {', '.join(WORKLOADS)}")
    model = WORKLOADS[workload]()
    feeds = feeds_for(model)
    top: Limits = limits(threads)
    floor = top.seconds(*floor_of(model))
    ready: list[tuple[Timed, Run]] = []
    refused: dict[str, str] = {}
    expected: Mapping[str, Array] | None = None
    for peer in (OURS, *peers):
        try:
            timed, run, results = _prepared(peer, model, feeds, threads)
        except Exception as error:  # a peer's failure is a result, whatever its type
            if peer is OURS:
                raise
            refused[peer.name] = str(error).split("\n")[0][:120]
            continue
        expected = results if expected is None else expected
        timed.deviation = _deviation(expected, results)
        ready.append((timed, run))
    _interleave(ready, feeds, seconds)
    timed = tuple(t for t, _ in ready)
    return Result(workload, threads, timed, floor / timed[0].median, refused)


def _prepared(
    peer: Peer, model: onnx.ModelProto, feeds: Mapping[str, Array], threads: int
) -> tuple[Timed, Run, Mapping[str, Array]]:
    started = time.perf_counter()
    run = peer.prepare(model, threads)
    results = run(feeds)
    return Timed(peer.name, time.perf_counter() - started), run, results


def _interleave(ready: Sequence[tuple[Timed, Run]], feeds: Mapping[str, Array], seconds: float) -> None:
    """Each peer warms up once in its turn, so that it does not find another's memory in the caches, and is timed."""
    until = time.perf_counter() + seconds * len(ready)
    rounds = 0
    while rounds < ROUNDS or time.perf_counter() < until:
        for timed, run in ready:
            run(feeds)
            for _ in range(3):
                started = time.perf_counter()
                run(feeds)
                timed.runs.append(time.perf_counter() - started)
        rounds += 1


def _deviation(expected: Mapping[str, Array], found: Mapping[str, Array]) -> float:
    worst = 0.0
    for name, array in expected.items():
        other = np.asarray(found[name])
        worst = max(worst, float(np.max(np.abs(array - other))) / max(float(np.max(np.abs(array))), 1e-30))
    return worst

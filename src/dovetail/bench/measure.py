"""Interleaved measurements: in every round each peer has its turn, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dovetail.bench.case import Case, load_arrays
from dovetail.bench.peer_process import LEAST_RUNS, LIMITS, PAUSE, WARM_UPS, Contender, results_of
from dovetail.bench.peers import OURS, Peer, Setting
from dovetail.bench.process import Process, RefusedError, make_setting
from dovetail.bench.result import Floor, Peak, Result, Timed
from dovetail.dataclass import dataclass
from dovetail.errors import CheckError
from dovetail.ir.literal import Array

TURN = 0.06
LEAST_ROUNDS = 7
FARTHEST = 0.05
"""A peer whose results differ more from ours, by the largest one, computes something else."""

HOW = (
    "Each peer has a process of its own on as many cores as it has threads, and they take turns: a turn is a pause of "
    f"{PAUSE * 1e3:.0f} ms, in which the threads of whoever ran before come to rest, {WARM_UPS} runs to warm up, and "
    f"timed runs for {TURN * 1e3:.0f} ms, at least {LEAST_RUNS}. The order moves on by one from round to round, and "
    f"there are {LEAST_ROUNDS} rounds or more. Times are medians of all timed runs; ± is half of what lies between the "
    "quartiles. First is preparing the model and running it once in a fresh process, after imports; warm is the same "
    "in a second process, which finds what the first has kept; memory is how far the first process grew by that at "
    "most. Deviation is the largest difference from our results, by the largest of them. Ratio is the best peer's time "
    "over ours. Limit is our share of the machine's own peak: multiply-adds at the rate of loops that do nothing else, "
    "or the weights read once from main memory, whichever takes longer. The peak is measured in every round and, like "
    "times, its median is taken: who shares the machine slows both down. At best is the shortest run beside the "
    "most that any loop has shown."
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: seconds for each peer, and whether starts are measured twice, cold and warm."""

    seconds: float = 3.0
    starts: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """The mesh of devices that dovetail runs on, and the rules of a placement by pattern."""

    mesh: Mapping[str, int]
    rules: Mapping[str, str]


def bench(
    case: Case,
    threads: int,
    peers: Sequence[Peer],
    effort: Effort,
    folder: Path,
    say: Say,
    placed: Placed | None = None,
) -> Result:
    """Measure one workload. `folder` is for what is kept between processes."""
    setting = make_setting(threads, folder)
    if placed is not None:
        setting.place(placed.mesh, placed.rules)
    measured = [peer for peer in (OURS, *peers) if peer.takes(case)]
    refused: dict[str, str] = {}
    with ExitStack() as stack:
        # The work of a module is counted by our own process, which exports it anyway.
        limits = None if case.network else _machine(case, setting, stack)
        ready: list[tuple[Timed, Process]] = []
        for number, peer in enumerate(measured, 1):
            say(f"{case.name}, {_threads(threads)}: {peer.name} starts ({number} of {len(measured)})")
            try:
                ready.append(_started(peer, case, setting, effort, stack))
            except RefusedError as error:
                _refuse(refused, peer.name, str(error))
        _compare(ready, setting, refused)
        machine, floor = limits or _machine(case, setting, stack)
        say(f"{case.name}, {_threads(threads)}: {len(ready)} take turns")
        shown, best = take_turns(ready, machine, effort.seconds, refused)
    timed = tuple(t for t, _ in ready if t.peer not in refused)
    return Result(case.name, threads, timed, Floor(**floor, shown=shown, best=best), refused)


def _machine(case: Case, setting: Setting, stack: ExitStack) -> tuple[Process, Mapping[str, float]]:
    """Return the machine's process, and the least work of the case."""
    machine = stack.enter_context(Process(LIMITS, case, setting))
    try:
        return machine, machine.start()
    except RefusedError as error:
        raise CheckError(f"dovetail does not read this: {error}", hint="dovetail explain says more") from error


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _refuse(refused: dict[str, str], peer: str, why: str) -> None:
    if peer == OURS.name:
        raise CheckError(f"dovetail does not run this: {why}", hint="dovetail run says more")
    refused[peer] = why


def _started(peer: Peer, case: Case, setting: Setting, effort: Effort, stack: ExitStack) -> tuple[Timed, Process]:
    """Start a peer that is ready for its turns; where starts are measured, another process has gone before it."""
    process = stack.enter_context(Process(peer.name, case, setting))
    if not effort.starts:
        return Timed(peer.name, **process.start()), process
    with Process(peer.name, case, setting) as cold:
        # Both import side by side; neither is measured while the other is busy.
        cold.wait_for_imports()
        process.wait_for_imports()
        timed = Timed(peer.name, **cold.start())
    timed.warm = process.start()["first"]
    return timed, process


def _compare(ready: Sequence[tuple[Timed, Contender]], setting: Setting, refused: dict[str, str]) -> None:
    ours = load_arrays(results_of(setting, OURS.name))
    for timed, _ in ready:
        timed.deviation = deviation(ours, load_arrays(results_of(setting, timed.peer)))
        if not timed.deviation <= FARTHEST:
            refused[timed.peer] = f"its results lie {timed.deviation:.2g} apart from ours"


def take_turns(
    ready: Sequence[tuple[Timed, Contender]], machine: Contender, seconds: float, refused: dict[str, str]
) -> tuple[tuple[Peak, ...], Peak]:
    """Return what the machine reached in each round, and its best."""
    until = time.monotonic() + seconds * (len(ready) + 1)
    shown: list[Peak] = []
    best = Peak(0.0, 0.0)
    while len(shown) < LEAST_ROUNDS or time.monotonic() < until:
        for place in range(len(ready)):
            timed, process = ready[(len(shown) + place) % len(ready)]
            if timed.peer in refused:
                continue
            try:
                timed.runs += process.turn(TURN)["runs"]
            except RefusedError as error:
                _refuse(refused, timed.peer, str(error))
        shown_ = machine.turn(TURN)
        shown.append(Peak(**shown_["last"]))
        best = Peak(**shown_["best"])
    return tuple(shown), best


def deviation(expected: Mapping[str, Array], actual: Mapping[str, Array]) -> float:
    """Return the largest difference over the largest expected value; infinite where shapes or numbers of outputs
    differ.
    """
    worst = 0.0
    if expected.keys() != actual.keys():
        return float("inf")
    for name, array in expected.items():
        other = actual[name]
        if other.shape != array.shape:
            return float("inf")
        wide, theirs = array.astype(np.float64), other.astype(np.float64)
        same = (wide == theirs) | (np.isnan(wide) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):
            apart = np.where(same, 0.0, np.abs(wide - theirs))
        if not np.isfinite(apart).all():
            return float("inf")
        largest = float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide)))
        worst = max(worst, float(np.max(apart, initial=0.0)) / (largest or 1.0))
    return worst

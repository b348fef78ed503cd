"""Profiling: a program run several times, with the time of each kernel credited to the nodes as written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan
from dovetail.progress import phase
from dovetail.report.measured import KernelTime, Measured, spread_of
from dovetail.report.record import Kernel
from dovetail.report.report import Report

WARM_UP = 2
"""Runs that are not counted: caches and threads wake up in them."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Runs of a program: the seconds of whole ones, and the marks of those that were watched."""

    seconds: tuple[float, ...]
    marked: tuple[tuple[Mark, ...], ...]


def record(
    run: Callable[[], object], run_marked: Callable[[], Sequence[Mark]], runs: int, *, most_seconds: float | None = None
) -> Recorded:
    """Run in turn as usual and with marks, so that both see the same machine.

    It ends after so many seconds even if there were fewer runs, but not before the third.
    """
    if isinstance(runs, bool) or runs < 1:
        raise OptionError(f"a profile of {runs} runs", hint="ask for one at least")
    for _ in range(WARM_UP):
        run()
        run_marked()
    seconds: list[float] = []
    marked: list[tuple[Mark, ...]] = []
    started = time.perf_counter()
    with phase("measure", still=True) as told:
        while len(seconds) < runs:
            told.at(len(seconds) + 1, runs)
            begun = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begun)
            marked.append(tuple(run_marked()))
            if most_seconds is not None and len(seconds) >= 3 and time.perf_counter() - started > most_seconds:
                break
    return Recorded(tuple(seconds), tuple(marked))


def measured(recorded: Recorded, plan: Plan, report: Report, *, threads: int, sizes: Mapping[str, int]) -> Measured:
    """What was recorded, in the words of the report of the same plan."""
    whole = spread_of(recorded.seconds)
    by_step = {step.name: kernel for step, kernel in zip(plan.steps, report.kernels, strict=True)}
    times: dict[str, list[float]] = {}
    on_host: set[str] = set()
    for marks in recorded.marked:
        for mark in marks:
            times.setdefault(mark.step.name, []).append(mark.seconds)
            if mark.on_host:
                on_host.add(mark.step.name)
    kernels = tuple(_time(by_step[name], seconds, name in on_host) for name, seconds in times.items())
    return Measured(
        runs=whole.count,
        threads=threads,
        seconds=whole.seconds,
        spread=whole.spread,
        roofline=report.floor_seconds / whole.seconds,
        host_seconds=sum(k.seconds for k in kernels if k.on_host),
        overhead_seconds=max(0.0, whole.seconds - sum(k.seconds for k in kernels)),
        calibration=report.calibration,
        sizes=dict(sizes),
        kernels=kernels,
    )


def _time(kernel: Kernel, seconds: Sequence[float], on_host: bool) -> KernelTime:
    found = spread_of(seconds)
    return KernelTime(
        kernel=kernel.name,
        op=kernel.op,
        form=kernel.form,
        type=kernel.type,
        nodes=tuple(n.name for n in kernel.works_for),
        where=tuple(dict.fromkeys(n.where for n in kernel.works_for if n.where)),
        seconds=found.seconds,
        spread=found.spread,
        predicted_seconds=kernel.seconds,
        roofline=kernel.floor_seconds / found.seconds if found.seconds else 0.0,
        on_host=on_host,
        flops=kernel.flops,
        bytes=kernel.bytes,
    )


__all__ = ["Recorded", "measured", "record"]

"""Timing of compiled loops in pinned threads that start together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array


@dataclass(frozen=True, slots=True)
class Times:
    """Of each loop in each thread [threads, loops]: its start, its end, and the seconds of processor time it had."""

    begins: Array
    ends: Array
    used: Array

    def together(self) -> Array:
        """Seconds of each loop, from the start of the first thread to the end of the last."""
        return self.ends.max(0) - self.begins.min(0)

    def alone(self) -> Array:
        """Seconds of each loop in each thread."""
        return self.ends - self.begins

    def lost(self) -> float:
        """The share of the time in which threads that had work did not run: other processes had their cores."""
        wall = float(self.alone().sum())
        return max(0.0, 1 - float(self.used.sum()) / wall) if wall > 0 else 0.0

    def of(self, loops: slice) -> Times:
        """Those of some loops."""
        return Times(self.begins[:, loops], self.ends[:, loops], self.used[:, loops])


def pin(number: int) -> None:
    """Pin the calling thread to one of the cores that it may use, where the system can: two on a core measure half."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def pinned_times(threads: int, loops: Sequence[Callable[[int], None]]) -> Times:
    """Time loops that threads start together. A loop takes the number of its thread."""
    begins, ends, used = (np.zeros((threads, len(loops))) for _ in range(3))
    barrier = threading.Barrier(threads)

    def work(number: int) -> None:
        pin(number)
        for index, loop in enumerate(loops):
            barrier.wait()
            before = time.thread_time()
            begins[number, index] = time.perf_counter()
            loop(number)
            ends[number, index] = time.perf_counter()
            used[number, index] = time.thread_time() - before

    team = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return Times(begins, ends, used)


__all__ = ["Times", "pin", "pinned_times"]

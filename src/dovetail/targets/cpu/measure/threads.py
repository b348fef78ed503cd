"""Timing of compiled loops in pinned threads that start together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from dovetail.ir.literal import Array


def pin(number: int) -> None:
    """Pin the calling thread to one of the cores that it may use, where the system can: two on a core measure half."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def pinned_times(threads: int, loops: Sequence[Callable[[int], None]]) -> tuple[Array, Array]:
    """The start and the end of each loop in each thread, in seconds [threads, loops]. Threads start a loop together.

    A loop is given the number of its thread.
    """
    begins, ends = np.zeros((threads, len(loops))), np.zeros((threads, len(loops)))
    barrier = threading.Barrier(threads)

    def work(number: int) -> None:
        pin(number)
        for index, loop in enumerate(loops):
            barrier.wait()
            begins[number, index] = time.perf_counter()
            loop(number)
            ends[number, index] = time.perf_counter()

    team = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return begins, ends


__all__ = ["pin", "pinned_times"]

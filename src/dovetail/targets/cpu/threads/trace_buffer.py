"""The sheet on which compiled code writes down when the steps of a section ran."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.plan.marks import Mark, Work
from dovetail.plan.plan import Step
from dovetail.targets.cpu.threads.pool_text import MARK_WORDS


class Sheet:
    """Room for the marks of so many steps: each as a whole, and by thread."""

    def __init__(self, steps: Sequence[Step], threads: int) -> None:
        self.steps = steps
        self.host: dict[int, tuple[int, int]] = {}
        row = MARK_WORDS * (1 + threads)
        self.words = np.zeros(1 + row * len(steps), np.int64)
        self.words[0] = 8 * row
        self.rows = self.words[1:].reshape(len(steps), 1 + threads, MARK_WORDS)

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    def on_host(self, index: int, begin: int) -> None:
        """A step that the host has just run, from this time until now."""
        self.host[index] = (begin, time.perf_counter_ns())

    def marks(self) -> Iterable[Mark]:
        """What is written there, in the order of the steps."""
        for index, (step, row) in enumerate(zip(self.steps, self.rows.tolist(), strict=True)):
            (begin, end), *threads = row
            if index in self.host:
                # A kernel that refused what it read ran before the host did, and its time counts too.
                first, last = self.host[index]
                yield Mark(step, begin or first, last, True)
            else:
                work = tuple(Work(t, first, last) for t, (first, last) in enumerate(threads) if last)
                yield Mark(step, begin, end, False, work)


__all__ = ["Sheet"]

"""The trace buffer: compiled code records there when the steps of a section ran."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.plan.marks import Mark, Work
from dovetail.plan.plan import Step
from dovetail.targets.cpu.threads.trace_text import MARK_FIELDS


class TraceBuffer:
    """Marks of a section's steps: one for each step, and one for each of its threads."""

    def __init__(self, steps: Sequence[Step], threads: int) -> None:
        self.steps = steps
        self.host: dict[int, tuple[int, int]] = {}
        row = len(MARK_FIELDS) * (1 + threads)
        self.words = np.zeros(1 + row * len(steps), np.int64)
        self.words[0] = 8 * row
        self.rows = self.words[1:].reshape(len(steps), 1 + threads, len(MARK_FIELDS))

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    def on_host(self, index: int, begin: int) -> None:
        """Record a step that the host ran, from this time until now."""
        self.host[index] = (begin, time.perf_counter_ns())

    def marks(self) -> Iterable[Mark]:
        """The marks, in the order of the steps."""
        for index, (step, row) in enumerate(zip(self.steps, self.rows.tolist(), strict=True)):
            (begin, end), *threads = row
            if index in self.host:
                # A kernel that set the error flag ran before the host did, and its time counts.
                first, last = self.host[index]
                yield Mark(step, begin or first, last, True)
            else:
                work = tuple(Work(t, first, last) for t, (first, last) in enumerate(threads) if last)
                yield Mark(step, begin, end, False, work)


__all__ = ["TraceBuffer"]

"""Marks: when each step of a run began and ended, and which threads worked on it."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.plan.plan import Step


@dataclass(frozen=True, slots=True)
class Work:
    """What one thread did for a step, from its first tile to its last; thread 0 leads."""

    thread: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Mark:
    """One step of one run; times are nanoseconds of the clock that `time.perf_counter_ns` reads."""

    step: Step
    begin: int
    end: int
    on_host: bool
    """Whether it ran as NumPy on the host and not as compiled code."""
    work: tuple[Work, ...] = ()

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) * 1e-9


__all__ = ["Mark", "Work"]

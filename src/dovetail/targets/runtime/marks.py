"""Marks: when each step of a run began and ended, and which threads worked on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dovetail.ir.literal import Array
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


@runtime_checkable
class Marking(Protocol):
    """A runner that can tell when its steps ran."""

    @property
    def threads(self) -> int:
        """How many threads a run may use."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        ...

    def run_marked(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Sequence[Mark]]:
        """The outputs by name, and a mark for each step in the order in which they ran."""
        ...


__all__ = ["Mark", "Marking", "Work"]

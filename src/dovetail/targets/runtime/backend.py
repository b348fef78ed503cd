"""What a target supplies to the shared runtime: kernel selection, a compiler, an executor, and its stored records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Machine
from dovetail.kernels.loops.policy import LoopTarget
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.runtime.building.code_cache import CodeCache
from dovetail.targets.runtime.registry import Registry

Select: TypeAlias = Callable[[Step, TensorLocations], Job | None]
"""The kernel of a step; None where the step runs on the host."""


class Executor(Protocol):
    """Runs the steps of a launch table."""

    @property
    def threads(self) -> int:
        """Threads that a run uses, each with a workspace of its own."""
        ...

    def run(self, table: int, first: int, count: int, scratch: int, stride: int, trace: int = 0) -> int:
        """Run steps of the table at an address; gives the index of the step that the host must run, or `count`.

        Thread i has its workspace at `scratch + i * stride`. `trace` is the address of a trace buffer, or 0.
        """
        ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One target as the shared runtime sees it."""

    target: str
    select: Select
    loops: Callable[[], LoopTarget]
    """What compiled loops may use: scalar functions and tile sizes."""
    code: CodeCache
    machine: Machine
    """The machine model that estimates kernels: the target's own figures. No result depends on a measurement."""
    records: Registry
    """The dataclasses that stored jobs of the target may hold."""


__all__ = ["Backend", "Executor", "Select"]

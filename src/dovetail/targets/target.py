"""A target: what it says of itself, and what turns a plan into something that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dovetail.declare.fused import FusedOp
from dovetail.ir.literal import Array
from dovetail.passes.claims import Claims
from dovetail.plan.plan import Plan
from dovetail.settings import Settings


class Runner(Protocol):
    """A compiled plan with its parameters; several threads may run it at once."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns."""
        ...


class Executable(Protocol):
    """A plan as a target compiled it."""

    def bind(self, params: Mapping[str, Array]) -> Runner:
        """Run the bind phase. This and `run` are given arrays of exactly the names, dtypes and shapes declared."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """One target: its claims for a vocabulary of declared ops, and its compiler."""

    name: str
    claims: Callable[[Iterable[FusedOp[...]]], Claims]
    """Given the user's own declared ops."""
    compile: Callable[[Plan, Settings], Executable]
    any_size: bool = False
    """Whether one executable runs at every size, so that a program need not be compiled for the sizes of a run."""

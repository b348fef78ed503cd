"""A target: what it says of itself, and what turns a plan into something that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from dovetail.declare.cost import Machine
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.passes.claims import Claims
from dovetail.plan.plan import Plan, Step
from dovetail.settings import Settings

Notation: TypeAlias = Literal["llvm", "asm"]
"""How the code of a kernel is written down: as the text that is compiled, or as the assembly that it becomes."""


class Runner(Protocol):
    """A compiled plan with its parameters; several threads may run it at once."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns."""
        ...


@runtime_checkable
class Quick(Protocol):
    """A runner that prepares runs."""

    def quick(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """What `run` gives, if the inputs are as they should be; None leaves it to `run` to look at them closely."""
        ...


class Executable(Protocol):
    """A plan as a target compiled it."""

    def bind(self, params: Mapping[str, Array]) -> Runner:
        """Run the bind phase. This and `run` are given arrays of exactly the names, dtypes and shapes declared."""
        ...


@dataclass(frozen=True, slots=True)
class Serializer:
    """How a target stores compiled plans for other processes."""

    made_from: Callable[[], Mapping[str, str]]
    """What decides the code in addition to the plan: the processor, the compiler."""
    to_bytes: Callable[[Executable], bytes | None]
    """None where the plan cannot be stored."""
    from_bytes: Callable[[Plan, bytes, Settings], Executable]


@dataclass(frozen=True, slots=True)
class Target:
    """One target: its claims for a vocabulary of declared ops, and its compiler."""

    name: str
    claims: Callable[[Iterable[FusedOp[...]]], Claims]
    """Given the user's own declared ops."""
    compile: Callable[[Plan, Settings], Executable]
    any_size: bool = False
    """Whether one executable runs at every size, so that a program need not be compiled for the sizes of a run."""
    machine: Callable[[Settings], Machine] | None = None
    """The machine of the claims as it is known on this host; None where nothing more is known."""
    variants: Callable[[Plan, Mapping[str, Size]], Mapping[Value, str | None]] | None = None
    """By value of a run, which of its op's kernels serves it at these sizes: None on the host, "" without a choice."""
    code: Callable[[Plan, Step, Notation], str] | None = None
    """The code of a step's kernel for people; a step that has none is refused with a reason. None: it has no code."""
    serializer: Serializer | None = None
    """How it stores compiled plans; None where it stores none."""
    precompile: Callable[[Iterable[Value], Settings], None] | None = None
    """Starts to compile functions that a program of these values needs, while it is lowered."""
    warm_up: Callable[[Settings], None] | None = None
    """Starts to compile what every program needs, while the graph is read and lowered."""

"""What kernel selection works with: a step as a problem, what a kernel offers for it, and why a kernel refuses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost
from dovetail.ir.value import Value
from dovetail.kernels.loops.body import Body, body_of
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.spec import Job, TensorLocations, Variant
from dovetail.plan.plan import Step

D = TypeVar("D", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """A condition of a kernel that does not hold of a step: a named fact, what was found and what it expects."""

    condition: str
    found: str = ""
    expected: str = ""
    hint: str = ""
    """What would change it."""

    def words(self) -> str:
        """The condition as a report has it."""
        parts = [f"{name} {what}" for name, what in (("found", self.found), ("expected", self.expected)) if what]
        about = f" ({', '.join(parts)})" if parts else ""
        return f"not: {self.condition.replace('_', ' ')}{about}"


@dataclass(frozen=True, slots=True)
class Offer:
    """A kernel that can serve a step."""

    build: Callable[[], Job | Refused]
    """Generates the code; a condition that only building can check may still refuse."""
    cost: Callable[[], Cost] | None = None
    """Its work and traffic; None counts what the step's op declares."""
    name: str = ""
    """The name in reports, where a row of the table offers several kernels."""
    variant: Callable[[], Variant] | None = None
    """The kernel for sizes that are known later; None where sizes are known now."""
    work: Callable[[], float] | None = None
    """Seconds of its arithmetic by its tiles; None is by the machine model."""


Answer: TypeAlias = Offer | Sequence[Offer] | Refused
"""What a row of the selection table says to a step."""


class StepProblem(Generic[D]):
    """A step for a device. What several kernels read of it is computed once."""

    __slots__ = ("_device", "_known", "locations", "request", "step")

    def __init__(self, step: Step, locations: TensorLocations, device: D, request: Request = LAUNCH) -> None:
        self.step = step
        self.request = request
        self.locations = locations
        self._device = device
        self._known: dict[Callable[..., Any], Any] = {}

    @property
    def device(self) -> D:
        return self._device

    @property
    def value(self) -> Value:
        return self.step.value

    @property
    def body(self) -> Body:
        """What the step computes, in primitives."""
        return self.once(_body)

    def once(self, read: Callable[[StepProblem[D]], T]) -> T:
        """What a function reads of the step; the function runs once."""
        if read not in self._known:
            self._known[read] = read(self)
        return self._known[read]


def _body(of: StepProblem[object]) -> Body:
    return body_of(of.value, of.locations)


__all__ = ["Answer", "Offer", "Refused", "StepProblem"]

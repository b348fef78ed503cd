"""Kernel templates as they are tried: one that raises has no kernel for the step, and the report says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.errors import DovetailError
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step

FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    DovetailError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that a mistake in a template raises. What the handler of a signal raises, such as TimeoutError, goes on."""


def attempt(template: Callable[..., Job | None], step: Step, locations: TensorLocations, *more: Any) -> Job | None:
    """The job that a template makes of a step; None where it has none, or raises."""
    try:
        return template(step, locations, *more)
    except FAULTS as error:
        name = getattr(template, "__name__", "a template").strip("_")
        locations.refused[step.value] = raised(name, error)
        return None


def raised(name: str, error: Exception) -> str:
    """Return the line of a report on a template that raised."""
    said = (str(error).splitlines() or ["no message"])[0][:120]
    return f"{name} raised {type(error).__name__}: {said}"


__all__ = ["FAULTS", "attempt", "raised"]

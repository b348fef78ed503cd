"""Schedules: by how much the learning rate is multiplied in each step, counted from 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from dovetail.errors import OptionError

Schedule: TypeAlias = Callable[[int], float]


def constant(step: int) -> float:
    """Return the rate as it is."""
    return 1.0


def warm_up(steps: int, then: Schedule = constant) -> Schedule:
    """Rise from 0 to the rate in n steps, then follow another schedule, which counts from 1 again."""
    _check(steps)
    return lambda step: step / steps if step <= steps else then(step - steps)


def linear(steps: int, end: float = 0.0) -> Schedule:
    """Fall from the rate to a share of it, in a line."""
    _check(steps)
    return lambda step: 1 + (end - 1) * min(1.0, (step - 1) / steps)


def cosine(steps: int, end: float = 0.0) -> Schedule:
    """Fall from the rate to a share of it, as half a cosine wave."""
    _check(steps)
    return lambda step: end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - 1) / steps)))


def steps_down(every: int, by: float = 0.1) -> Schedule:
    """Multiply the rate by a share after every n steps."""
    _check(every)
    return lambda step: by ** ((step - 1) // every)


def _check(steps: int) -> None:
    if steps < 1:
        raise OptionError(f"a schedule of {steps} steps", hint="pass at least 1")


__all__ = ["Schedule", "constant", "cosine", "linear", "steps_down", "warm_up"]

"""Central differences in float64: the judge of every gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import ops
from dovetail.ir.value import Value

Array = NDArray[Any]
STEP = 1e-6
NEAR = 2e-7
"""How far a derivative may be from its difference quotient, relative to the largest of its tensor."""


def total(x: Value) -> Value:
    """The sum of all elements, of rank 0."""
    axes = tuple(range(-x.rank, 0))
    return ops.squeeze(ops.reduce_sum(x, axes=axes), axes=axes) if axes else x


def differences(of: Callable[[Mapping[str, Array]], float], at: Mapping[str, Array], name: str) -> Array:
    """The derivative of a number by every element of one array."""
    found = np.zeros(at[name].shape)
    for place in np.ndindex(*found.shape):
        sides: list[float] = []
        for sign in (1.0, -1.0):
            moved = at[name].copy()
            moved[place] += sign * STEP
            sides.append(of({**at, name: moved}))
        found[place] = (sides[0] - sides[1]) / (2 * STEP)
    return found


def assert_near(got: Array, expected: Array, what: str = "", *, near: float = NEAR) -> None:
    scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
    worst = float(np.abs(got - expected).max(initial=0.0)) / scale
    assert worst <= near, f"{what}: off by {worst:.2e}\n{got}\nby differences\n{expected}"


def normal(rng: np.random.Generator, like: Value) -> Array:
    """Random numbers in the shape of a value without symbols."""
    return rng.normal(size=[int(str(size)) for size in like.shape])

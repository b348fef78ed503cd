"""gelu in its two forms."""

from __future__ import annotations

import math
from typing import Literal

from dovetail import ops
from dovetail.declare import UnwrittenError, fused_op
from dovetail.ir.value import Value

Form = Literal["erf", "tanh"]

_ROOT = math.sqrt(2.0)
_SLOPE = math.sqrt(2.0 / math.pi)


@fused_op(shapes="x[*]", stage="recognise")
def gelu(x: Value, *, form: Form = "erf") -> Value:
    """Gaussian error linear unit, exact or by tanh, in one pass."""
    return (0.5 * x) * _bent(x, form)


def _bent(x: Value, form: Form) -> Value:
    if form == "erf":
        return ops.erf(x / _ROOT) + 1.0
    return ops.tanh(_SLOPE * (x + 0.044715 * (x * x * x))) + 1.0


@gelu.spelling
def half_inside(x: Value, *, form: Form = "erf") -> Value:
    """The half stands beside the bend."""
    return x * (0.5 * _bent(x, form))


@gelu.spelling
def half_last(x: Value, *, form: Form = "erf") -> Value:
    """The half is taken of the product."""
    return 0.5 * (x * _bent(x, form))


@gelu.spelling
def by_power(x: Value, *, form: Form = "erf") -> Value:
    """The cube is a power, which stays one where every bit is kept."""
    if form == "erf":
        return (0.5 * x) * _bent(x, form)
    return (0.5 * x) * (ops.tanh(_SLOPE * (x + 0.044715 * x**3)) + 1.0)


@gelu.spelling
def slope_first(x: Value, *, form: Form = "erf") -> Value:
    """The slope is taken of x, and the cube is a square and x."""
    if form == "erf":
        raise UnwrittenError("the bend by erf, which has one slope only", hint="use the body")
    return (0.5 * x) * (ops.tanh((_SLOPE * x) * (0.044715 * x * x + 1.0)) + 1.0)

"""gelu in its two forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Literal

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value

Form = Literal["erf", "tanh"]

_ROOT = math.sqrt(2.0)
_SLOPE = math.sqrt(2.0 / math.pi)


@fused_op(shapes="x[*]", stage="recognise")
def gelu(x: Value, *, form: Form = "erf") -> Value:
    """Gaussian error linear unit, exact or by tanh, in one pass."""
    if form == "erf":
        return (0.5 * x) * (ops.erf(x / _ROOT) + 1.0)
    return (0.5 * x) * (ops.tanh(_SLOPE * (x + 0.044715 * (x * x * x))) + 1.0)


def half_first(x: Value, bend: Value) -> Value:
    return (0.5 * x) * (bend + 1.0)


def half_inside(x: Value, bend: Value) -> Value:
    return x * (0.5 * (bend + 1.0))


def half_last(x: Value, bend: Value) -> Value:
    return 0.5 * (x * (bend + 1.0))


def quotient_or_product(x: Value, form: Form) -> Value:
    return ops.erf(x / _ROOT) if form == "erf" else ops.tanh(_SLOPE * (x + 0.044715 * (x * x * x)))


def factor_or_power(x: Value, form: Form) -> Value:
    return ops.erf(x * (1.0 / _ROOT)) if form == "erf" else ops.tanh(_SLOPE * (x + 0.044715 * x**3))


Outer = Callable[[Value, Value], Value]
Inner = Callable[[Value, Form], Value]


def _spelled(outer: Outer, inner: Inner) -> Callable[..., Value]:
    def spelling(x: Value, *, form: Form = "erf") -> Value:
        return outer(x, inner(x, form))

    spelling.__name__ = f"{outer.__name__}_{inner.__name__}"
    return spelling


for _outer, _inner in tuple(product((half_first, half_inside, half_last), (quotient_or_product, factor_or_power)))[1:]:
    gelu.spelling(_spelled(_outer, _inner))

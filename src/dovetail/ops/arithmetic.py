"""Small arithmetic spelled in primitives. It reads no shapes, so that bodies and patterns may use it."""

from __future__ import annotations

import math

from dovetail.ir.value import Value
from dovetail.ops.deferred_shape import dtype_of
from dovetail.ops.elementwise import (
    abs_,
    bit_and,
    bit_not,
    bit_or,
    bit_xor,
    cast,
    div,
    equal,
    exp,
    is_inf,
    is_nan,
    less,
    log,
    log1p,
    maximum,
    minimum,
    not_equal,
    pow_,
    rem,
    where,
)
from dovetail.ops.primitive import Operand


def clip(x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    """x kept between low and high; high wins where they cross, NaN stays."""
    raised = x if low is None else maximum(x, low)
    return raised if high is None else minimum(raised, high)


def square(x: Value) -> Value:
    """x * x."""
    return x * x


def exp2(x: Value) -> Value:
    """2 to the power x."""
    return pow_(2.0, x)


def log2(x: Value) -> Value:
    """Logarithm to base 2."""
    return log(x) / math.log(2.0)


def log10(x: Value) -> Value:
    """Logarithm to base 10."""
    return log(x) / math.log(10.0)


def log_add_exp(x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) that does not overflow."""
    # Equal infinities have no difference; there the larger one is the result.
    return where(equal(x, y), x + math.log(2.0), maximum(x, y) + log1p(exp(-abs_(x - y))))


def is_finite(x: Value) -> Value:
    """Return whether x is neither infinite nor NaN."""
    return bit_not(bit_or(is_inf(x), is_nan(x)))


def floor_div(x: Value, y: Value) -> Value:
    """Quotient of integers, rounded down; 0 where y is 0."""
    left = rem(x, y)
    below = bit_and(not_equal(left, 0), bit_xor(less(left, 0), less(y, 0)))
    return div(x, y) - cast(below, dtype=dtype_of(x))


__all__ = ["clip", "exp2", "floor_div", "is_finite", "log2", "log10", "log_add_exp", "square"]

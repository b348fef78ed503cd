"""How norms over the last axis are spelled: the square, the division by the root, the casts around both."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Literal

from dovetail import ops
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.ops.question import dtype_of

Precision = Literal["own", "f32", "f32_affine"]
"""All in the dtype of x; normalised in f32; normalised, scaled and shifted in f32."""

Square = Callable[[Value], Value]
Divide = Callable[[Value, Value], Value]
Spelling = Callable[..., Value]


def squared(x: Value) -> Value:
    """The square is a product."""
    return x * x


def power(x: Value) -> Value:
    """The square is a power."""
    return x**2


def times_rsqrt(x: Value, variance: Value) -> Value:
    """Divided by a product with the inverse root."""
    return x * ops.rsqrt(variance)


def over_root(x: Value, variance: Value) -> Value:
    """Divided by the root itself."""
    return x / ops.sqrt(variance)


def times_quotient(x: Value, variance: Value) -> Value:
    """Divided by a product with 1 / root."""
    return x * (1.0 / ops.sqrt(variance))


def times_reciprocal(x: Value, variance: Value) -> Value:
    """Divided by a product with the root's reciprocal."""
    return x * ops.reciprocal(ops.sqrt(variance))


DIVIDED: tuple[Divide, ...] = (times_rsqrt, over_root, times_quotient, times_reciprocal)
SPELLED: tuple[tuple[Square, Divide], ...] = tuple(product((squared, power), DIVIDED))[1:]
"""The ways that exporters write a norm, but for the first, which the bodies write."""


def called(spelling: Spelling, *parts: Callable[..., Value]) -> Spelling:
    """A spelling that is put together, under the names and words of its parts."""
    spelling.__name__ = "_".join(p.__name__ for p in parts)
    spelling.__doc__ = " ".join(p.__doc__ or "" for p in parts)
    return spelling


def mean(x: Value) -> Value:
    return ops.reduce_mean(x, axes=(-1,))


def widened(x: Value, precision: Precision) -> Value:
    """x in the dtype that it is normalised in."""
    return x if precision == "own" else ops.cast(x, dtype=f32)


def scaled(y: Value, x: Value, gain: Value | None, bias: Value | None, precision: Precision) -> Value:
    """y times the gain plus the bias, cast back to the dtype of x before or after both."""
    if precision == "f32":
        y = ops.cast(y, dtype=dtype_of(x))
    if gain is not None:
        y = y * gain
    if bias is not None:
        y = y + bias
    return ops.cast(y, dtype=dtype_of(x)) if precision == "f32_affine" else y


def is_a_row(vector: Value | None, x: Value) -> bool:
    """Whether it is one number for each element of the last axis of x, or left out."""
    return vector is None or (x.rank > 0 and vector.shape == x.shape[-1:])

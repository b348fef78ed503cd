"""What norms over the last axis have in common: the mean, and the casts around them."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.ops.deferred_shape import dtype_of

Precision = Literal["own", "f32", "f32_affine"]
"""All in the dtype of x; normalised in f32; normalised, scaled and shifted in f32."""


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


def casts_anything(x: Value, precision: Precision) -> bool:
    """Whether a norm in f32 has to cast x; where it has not, the norm is one in the dtype of x."""
    return precision == "own" or x.dtype != f32

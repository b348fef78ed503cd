"""Values in another dtype, where they do not have it."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dtype import DType, f32
from dovetail.ir.value import Value


def cast(x: Value, dtype: DType) -> Value:
    """x in a dtype, as it is where it has that dtype."""
    return x if x.dtype is dtype else ops.cast(x, dtype=dtype)


def computed_in_f32(x: Value) -> Value:
    """x in a float dtype of 32 bits or more: frameworks accumulate narrow floats in f32."""
    return ops.cast(x, dtype=f32) if x.dtype.is_float and x.dtype.bits < 32 else x


__all__ = ["cast", "computed_in_f32"]

"""A convolution of 16-bit floats as one of f32: sums are f32 anyway, and kernels with register tiles read f32."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dtype import bf16, f16, f32
from dovetail.ir.value import Value
from dovetail.passes.claims import Claims


def is_narrow(value: Value) -> bool:
    """Whether a convolution is one of 16-bit floats."""
    return value.dtype in (f16, bf16)


def lower_narrow_conv(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """Operands widened, and the result rounded once, after bias and activation; weights are widened at bind time."""
    if not is_narrow(value):
        return None
    wide = value.with_operands(tuple([ops.cast(v, dtype=f32) for v in operands]))
    return ops.cast(wide, dtype=value.dtype)


__all__ = ["is_narrow", "lower_narrow_conv"]

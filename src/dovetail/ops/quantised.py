"""Between floats and narrow integers: q = x / scale + zero_point, for a whole tensor or along an axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import FLOATS, INTEGERS, DType
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint, elementwise, movement
from dovetail.ops.gradient import STEPS, Parts
from dovetail.ops.primitive import Array, Axis, DTypeAttr, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.special import whole

_NARROW = tuple(d for d in INTEGERS if d.bits <= 32)


def _steps(facts: Facts, x: TensorType, scale: TensorType, zero: TensorType, axis: int | None) -> None:
    """Scale and zero point are one number each, or one for every place along the axis."""
    for what, of in (("scale", scale), ("zero point", zero)):
        if of.rank != (0 if axis is None else 1):
            raise TypeRuleError(
                f"{facts.op}: a {what} of {of} with axis {axis}",
                hint="pass one number without an axis, or a vector with one",
            )
        if axis is not None:
            facts.equal(of.shape[0], x.shape[axis], f"the {what}, against the axis")


def _two_per_element(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(result).count * 2


def _quantise(facts: Facts, x: Type, scale: Type, zero_point: Type, *, dtype: DType, axis: int | None) -> Type:
    of, zero = tensor(x), tensor(zero_point)
    one_dtype(facts, [of, tensor(scale)], FLOATS)
    if dtype not in _NARROW or zero.dtype is not dtype:
        raise TypeRuleError(
            f"{facts.op} to {dtype.name} with a zero point of {zero.dtype.name}",
            hint=f"both are one of {', '.join(d.name for d in _NARROW)}",
        )
    _steps(facts, of, tensor(scale), zero, axis)
    return TensorType(dtype, of.shape)


def _beside(steps: Array, x: Array, axis: int | None) -> Array:
    """Numbers along an axis, shaped to broadcast against x."""
    return steps if axis is None else steps.reshape((-1, *(1,) * (-axis - 1)))


@primitive(_quantise, flops=_two_per_element, pull=STEPS)
def quantise(x: Array, scale: Array, zero_point: Array, *, dtype: DTypeAttr, axis: Axis | None = None) -> Array:
    """x / scale to the nearest integer, halves to even, plus the zero point, kept in range; NaN becomes 0."""
    steps = np.rint(x / _beside(scale, x, axis)).astype(np.float64)
    return whole(steps + _beside(zero_point, x, axis), dtype.numpy)


def _dequantise(facts: Facts, q: Type, scale: Type, zero_point: Type, *, dtype: DType, axis: int | None) -> Type:
    of, zero = tensor(q), tensor(zero_point)
    one_dtype(facts, [of, zero], _NARROW)
    one_dtype(facts, [tensor(scale)], FLOATS)
    if dtype not in FLOATS:
        raise TypeRuleError(f"{facts.op} to {dtype.name}", hint=f"it gives {', '.join(d.name for d in FLOATS)}")
    _steps(facts, of, tensor(scale), zero, axis)
    return TensorType(dtype, of.shape)


def _dequantise_pull(
    g: Value, y: Value, q: Value, scale: Value, zero: Value, *, dtype: DType, axis: int | None
) -> Parts:
    """Linear in the scale; the integers have no gradient."""
    offset = elementwise.cast(zero, dtype=dtype)
    steps = elementwise.cast(q, dtype=dtype) - (offset if axis is None else adjoint.along(offset, axis))
    lost = g * steps
    others = () if axis is None else tuple(a for a in range(-q.rank, 0) if a != axis)
    if others:
        lost = movement.squeeze(adjoint.sum_over(lost, others), axes=others)
    return None, elementwise.cast(adjoint.unbroadcast(lost, scale.shape), dtype=scale.dtype), None


@primitive(_dequantise, flops=_two_per_element, pull=_dequantise_pull)
def dequantise(q: Array, scale: Array, zero_point: Array, *, dtype: DTypeAttr, axis: Axis | None = None) -> Array:
    """(q - zero_point) * scale, rounded once."""
    steps = q.astype(np.float64) - _beside(zero_point, q, axis)
    return (steps * _beside(scale.astype(np.float64), q, axis)).astype(dtype.numpy)


FAMILY = family(globals())


__all__ = ["dequantise", "quantise"]

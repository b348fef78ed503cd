"""Running reductions along an axis. Exclusive leaves the element itself out, reverse runs from the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.ir.dtype import FLOATS, INTEGERS, NUMBERS, DType
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ops.primitive import Array, Axis, TypeRule, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.special import highest, lowest, wide

_REAL = (*INTEGERS, *FLOATS)


def _same_shape(allowed: Sequence[DType]) -> TypeRule:
    def rule(facts: Facts, x: Type, *, axis: int, exclusive: bool, reverse: bool) -> Type:
        of = tensor(x)
        return TensorType(one_dtype(facts, [of], allowed), of.shape)

    return rule


def _running(step: np.ufunc, start: Any, x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    forward = np.flip(x, axis) if reverse else x
    if exclusive and x.shape[axis]:
        front = np.full_like(np.take(forward, [0], axis), start)
        forward = np.concatenate([front, np.delete(forward, -1, axis)], axis)
    total: Array = step.accumulate(forward, axis=axis, dtype=wide(x.dtype)).astype(x.dtype)
    return np.flip(total, axis) if reverse else total


@primitive(_same_shape(NUMBERS))
def cum_sum(x: Array, *, axis: Axis, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running sum along an axis; whole numbers wrap."""
    return _running(np.add, 0, x, axis, exclusive, reverse)


@primitive(_same_shape(NUMBERS))
def cum_prod(x: Array, *, axis: Axis, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running product along an axis; whole numbers wrap."""
    return _running(np.multiply, 1, x, axis, exclusive, reverse)


@primitive(_same_shape(_REAL))
def cum_max(x: Array, *, axis: Axis, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running maximum along an axis; NaN stays once it is met."""
    return _running(np.maximum, lowest(x.dtype), x, axis, exclusive, reverse)


@primitive(_same_shape(_REAL))
def cum_min(x: Array, *, axis: Axis, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running minimum along an axis; NaN stays once it is met."""
    return _running(np.minimum, highest(x.dtype), x, axis, exclusive, reverse)


FAMILY = family(globals())

"""Running reductions along an axis. Exclusive leaves the element itself out, reverse runs from the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.ir.dtype import FLOATS, INTEGERS, NUMBERS, DType
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint, elementwise, movement
from dovetail.ops.gradient import Parts
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


def _sum_pull(g: Value, y: Value, x: Value, *, axis: int, exclusive: bool, reverse: bool) -> Parts:
    return (cum_sum(g, axis=axis, exclusive=exclusive, reverse=not reverse),)


@primitive(_same_shape(NUMBERS), pull=_sum_pull)
def cum_sum(x: Array, *, axis: Axis, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running sum along an axis; integers wrap."""
    return _running(np.add, 0, x, axis, exclusive, reverse)


def _prod_pull(g: Value, y: Value, x: Value, *, axis: int, exclusive: bool, reverse: bool) -> Parts:
    """Return the gradients. Of zeros, only the first has a slope: the products with 1 in its place."""
    zero = elementwise.equal(x, 0.0)
    met = cum_sum(elementwise.cast(zero, dtype=x.dtype), axis=axis, reverse=reverse)
    first = elementwise.bit_and(zero, elementwise.equal(met, 1.0))
    products = cum_prod(elementwise.where(first, 1.0, x), axis=axis, exclusive=exclusive, reverse=reverse)
    at_zero = cum_sum(g * products, axis=axis, exclusive=exclusive, reverse=not reverse)
    elsewhere = cum_sum(g * y, axis=axis, exclusive=exclusive, reverse=not reverse)
    divided = elementwise.where(zero, 0.0, elsewhere / elementwise.where(zero, 1.0, x))
    return (elementwise.where(first, at_zero, divided),)


@primitive(_same_shape(NUMBERS), pull=_prod_pull)
def cum_prod(x: Array, *, axis: Axis, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running product along an axis; integers wrap."""
    return _running(np.multiply, 1, x, axis, exclusive, reverse)


def _max_pull(g: Value, y: Value, x: Value, *, axis: int, exclusive: bool, reverse: bool) -> Parts:
    """Send each gradient to the element that is the largest so far; of equals to the last one."""
    return (_sent_to(g, x, cum_max(x, axis=axis, reverse=reverse), axis, exclusive, reverse),)


def _min_pull(g: Value, y: Value, x: Value, *, axis: int, exclusive: bool, reverse: bool) -> Parts:
    """Send each gradient to the element that is the smallest so far; of equals to the last one."""
    return (_sent_to(g, x, cum_min(x, axis=axis, reverse=reverse), axis, exclusive, reverse),)


def _sent_to(g: Value, x: Value, extreme: Value, axis: int, exclusive: bool, reverse: bool) -> Value:
    """Add each gradient to the element that is the running extreme there."""
    if exclusive:  # each result is the inclusive one of its neighbour
        g = _shifted(g, axis, towards_start=not reverse)
    is_extreme = elementwise.equal(x, extreme)
    places = adjoint.along(adjoint.counter(x.shape[axis]), axis)
    if reverse:
        index = cum_min(elementwise.where(is_extreme, places, _FAR), axis=axis, reverse=True)
    else:
        index = cum_max(elementwise.where(is_extreme, places, -1), axis=axis)
    return adjoint.added_at(adjoint.zeros_like(x), index, g, axis)


_FAR = 2**62
"""Beyond every index."""


def _shifted(g: Value, axis: int, *, towards_start: bool) -> Value:
    """g moved by one along an axis; what leaves it is dropped, and a 0 moves in."""
    size = g.shape[axis]
    kept = movement.slice_(g, axis=axis, start=1 if towards_start else 0, stop=size if towards_start else size - 1)
    return movement.pad(kept, 0.0, axis=axis, before=0 if towards_start else 1, after=1 if towards_start else 0)


@primitive(_same_shape(_REAL), pull=_max_pull)
def cum_max(x: Array, *, axis: Axis, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running maximum along an axis; NaN stays once it is met."""
    return _running(np.maximum, lowest(x.dtype), x, axis, exclusive, reverse)


@primitive(_same_shape(_REAL), pull=_min_pull)
def cum_min(x: Array, *, axis: Axis, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running minimum along an axis; NaN stays once it is met."""
    return _running(np.minimum, highest(x.dtype), x, axis, exclusive, reverse)


FAMILY = family(globals())


__all__ = ["cum_max", "cum_min", "cum_prod", "cum_sum"]

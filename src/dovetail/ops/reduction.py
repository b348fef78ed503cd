"""Reductions. The reduced axes stay with size 1, so that a result broadcasts against what it came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.ir.dim import Size
from dovetail.ir.dtype import FLOATS, INEXACT, INTEGERS, NUMBERS, DType, bool_, i64
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint, elementwise
from dovetail.ops.gradient import NOT_FLOAT, Parts
from dovetail.ops.primitive import Array, Axes, Axis, TypeRule, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.special import highest, lowest, wide

_ORDERED = (*INTEGERS, *FLOATS, bool_)


def _reduced(allowed: Sequence[DType], *, result: DType | None = None) -> TypeRule:
    def rule(facts: Facts, x: Type, *, axes: tuple[int, ...]) -> Type:
        of = tensor(x)
        dtype = one_dtype(facts, [of], allowed)
        shape = tuple(1 if a - of.rank in axes else s for a, s in enumerate(of.shape))
        return TensorType(result or dtype, shape)

    return rule


def _one_per_input(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(operands[0]).count


def _sum_pull(g: Value, y: Value, x: Value, *, axes: tuple[int, ...]) -> Parts:
    return (adjoint.broadcast(g, x.shape),)


@primitive(_reduced(NUMBERS), flops=_one_per_input, pull=_sum_pull)
def reduce_sum(x: Array, *, axes: Axes) -> Array:
    """Sum over axes; integers wrap, the sum of nothing is 0."""
    return np.sum(x, axis=axes, keepdims=True, dtype=wide(x.dtype)).astype(x.dtype)


def _mean_pull(g: Value, y: Value, x: Value, *, axes: tuple[int, ...]) -> Parts:
    return (adjoint.broadcast(g / adjoint.count([x.shape[a] for a in axes], x.dtype), x.shape),)


@primitive(_reduced(INEXACT), flops=_one_per_input, pull=_mean_pull)
def reduce_mean(x: Array, *, axes: Axes) -> Array:
    """Mean over axes; the mean of nothing is NaN."""
    count = math.prod(x.shape[a] for a in axes)
    return (np.sum(x, axis=axes, keepdims=True, dtype=wide(x.dtype)) / count).astype(x.dtype)


def _extreme_pull(g: Value, y: Value, x: Value, *, axes: tuple[int, ...]) -> Parts:
    """Equal extremes share the gradient."""
    chosen = elementwise.cast(elementwise.equal(x, y), dtype=x.dtype)
    return (g / reduce_sum(chosen, axes=axes) * chosen,)


@primitive(_reduced(_ORDERED), flops=_one_per_input, pull=_extreme_pull)
def reduce_max(x: Array, *, axes: Axes) -> Array:
    """Largest element over axes; NaN wins, of two zeros either; that of nothing is the lowest number of the dtype."""
    return np.max(x, axis=axes, keepdims=True, initial=lowest(x.dtype))


@primitive(_reduced(_ORDERED), flops=_one_per_input, pull=_extreme_pull)
def reduce_min(x: Array, *, axes: Axes) -> Array:
    """Smallest element over axes; NaN wins, of two zeros either; that of nothing is the highest number of the dtype."""
    return np.min(x, axis=axes, keepdims=True, initial=highest(x.dtype))


def _prod_pull(g: Value, y: Value, x: Value, *, axes: tuple[int, ...]) -> Parts:
    """Return the product of all others, which is right at zeros: one of them has a slope, two have none."""
    zero = elementwise.equal(x, 0.0)
    zeros = reduce_sum(elementwise.cast(zero, dtype=x.dtype), axes=axes)
    others = elementwise.where(zero, 1.0, x)
    slope = g * reduce_prod(others, axes=axes)
    at_zero = elementwise.where(elementwise.equal(zeros, 1.0), slope, 0.0)
    return (elementwise.where(zero, at_zero, elementwise.where(elementwise.equal(zeros, 0.0), slope, 0.0) / others),)


@primitive(_reduced(NUMBERS), flops=_one_per_input, pull=_prod_pull)
def reduce_prod(x: Array, *, axes: Axes) -> Array:
    """Product over axes; integers wrap, the product of nothing is 1."""
    return np.prod(x, axis=axes, keepdims=True, dtype=wide(x.dtype)).astype(x.dtype)


@primitive(_reduced((bool_,)), flops=_one_per_input, pull=NOT_FLOAT)
def reduce_any(x: Array, *, axes: Axes) -> Array:
    """Whether any element over axes is true."""
    return np.any(x, axis=axes, keepdims=True)


@primitive(_reduced((bool_,)), flops=_one_per_input, pull=NOT_FLOAT)
def reduce_all(x: Array, *, axes: Axes) -> Array:
    """Whether all elements over axes are true."""
    return np.all(x, axis=axes, keepdims=True)


def _arg(facts: Facts, x: Type, *, axis: int, last: bool) -> Type:
    facts.at_least(tensor(x).shape[axis], 1, "an axis to find an index in")
    return _reduced(_ORDERED, result=i64)(facts, x, axes=(axis,))


@primitive(_arg, flops=_one_per_input, pull=NOT_FLOAT)
def arg_max(x: Array, *, axis: Axis, last: bool = False) -> Array:
    """Index of the largest element along an axis, NaN before all; the first of equals unless `last`."""
    return _arg_extreme(np.argmax, x, axis, last)


@primitive(_arg, flops=_one_per_input, pull=NOT_FLOAT)
def arg_min(x: Array, *, axis: Axis, last: bool = False) -> Array:
    """Index of the smallest element along an axis, NaN before all; the first of equals unless `last`."""
    return _arg_extreme(np.argmin, x, axis, last)


def _arg_extreme(function: Callable[..., Array], x: Array, axis: int, last: bool) -> Array:
    if not last:
        return function(x, axis=axis, keepdims=True)
    return x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=True)


def reduce_l1(x: Value, *, axes: Sequence[int]) -> Value:
    """Sum of absolute values over axes."""
    return reduce_sum(elementwise.abs_(x), axes=axes)


def reduce_l2(x: Value, *, axes: Sequence[int]) -> Value:
    """Euclidean length over axes."""
    return elementwise.sqrt(reduce_sum_square(x, axes=axes))


def reduce_sum_square(x: Value, *, axes: Sequence[int]) -> Value:
    """Sum of squares over axes."""
    return reduce_sum(x * x, axes=axes)


def reduce_log_sum_exp(x: Value, *, axes: Sequence[int]) -> Value:
    """log(sum(exp(x))) over axes, shifted by the largest element so that nothing overflows."""
    top = reduce_max(x, axes=axes)
    # A shift by infinity would make NaN of inf - inf.
    shift = elementwise.where(elementwise.is_inf(top), 0.0, top)
    return elementwise.log(reduce_sum(elementwise.exp(x - shift), axes=axes)) + shift


FAMILY = family(globals())


__all__ = [
    "arg_max", "arg_min", "reduce_all", "reduce_any", "reduce_l1", "reduce_l2", "reduce_log_sum_exp", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square",
]  # fmt: skip

"""Reductions. The reduced axes stay with size 1, so that a result broadcasts against what it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import INEXACT, NUMBERS, DType, bool_, i64
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ops.primitive import Array, Axes, Axis, TypeRule, family, primitive
from dovetail.ops.rules import one_dtype, tensor


def _reduced(allowed: Sequence[DType], *, result: DType | None = None, empty_ok: bool = True) -> TypeRule:
    def rule(facts: Facts, x: Type, *, axes: tuple[int, ...]) -> Type:
        of = tensor(x)
        dtype = one_dtype(facts, [of], allowed)
        if not empty_ok:
            for axis in axes:
                if of.shape[axis] == 0:
                    raise TypeRuleError(f"{facts.op} over an axis of size 0", hint="it has no value for nothing")
        shape = tuple(1 if a - of.rank in axes else s for a, s in enumerate(of.shape))
        return TensorType(result or dtype, shape)

    return rule


def _one_per_input(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(operands[0]).count



@primitive(_reduced(NUMBERS), flops=_one_per_input)
def reduce_sum(x: Array, *, axes: Axes) -> Array:
    """Sum over axes."""
    return np.sum(x, axis=axes, keepdims=True, dtype=x.dtype)


@primitive(_reduced(INEXACT, empty_ok=False), flops=_one_per_input)
def reduce_mean(x: Array, *, axes: Axes) -> Array:
    """Mean over axes."""
    return np.mean(x, axis=axes, keepdims=True)


@primitive(_reduced((*NUMBERS, bool_), empty_ok=False), flops=_one_per_input)
def reduce_max(x: Array, *, axes: Axes) -> Array:
    """Largest element over axes; NaN wins."""
    return np.max(x, axis=axes, keepdims=True)


@primitive(_reduced((*NUMBERS, bool_), empty_ok=False), flops=_one_per_input)
def reduce_min(x: Array, *, axes: Axes) -> Array:
    """Smallest element over axes; NaN wins."""
    return np.min(x, axis=axes, keepdims=True)


@primitive(_reduced(NUMBERS), flops=_one_per_input)
def reduce_prod(x: Array, *, axes: Axes) -> Array:
    """Product over axes."""
    return np.prod(x, axis=axes, keepdims=True, dtype=x.dtype)


@primitive(_reduced((bool_,)), flops=_one_per_input)
def reduce_any(x: Array, *, axes: Axes) -> Array:
    """Whether any element over axes is true."""
    return np.any(x, axis=axes, keepdims=True)


@primitive(_reduced((bool_,)), flops=_one_per_input)
def reduce_all(x: Array, *, axes: Axes) -> Array:
    """Whether all elements over axes are true."""
    return np.all(x, axis=axes, keepdims=True)


def _arg(facts: Facts, x: Type, *, axis: int, last: bool) -> Type:
    return _reduced((*NUMBERS, bool_), result=i64, empty_ok=False)(facts, x, axes=(axis,))


@primitive(_arg, flops=_one_per_input)
def arg_max(x: Array, *, axis: Axis, last: bool = False) -> Array:
    """Index of the largest element along an axis; the first of equals unless `last`."""
    return _arg_extreme(np.argmax, x, axis, last)


@primitive(_arg, flops=_one_per_input)
def arg_min(x: Array, *, axis: Axis, last: bool = False) -> Array:
    """Index of the smallest element along an axis; the first of equals unless `last`."""
    return _arg_extreme(np.argmin, x, axis, last)


def _arg_extreme(function: Callable[..., Array], x: Array, axis: int, last: bool) -> Array:
    if not last:
        return np.expand_dims(function(x, axis=axis), axis)
    return np.expand_dims(x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis), axis)


ALL = family(globals())


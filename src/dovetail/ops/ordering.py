"""Sorting. Equal elements keep their order, and NaN counts as larger than every number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.ir.dim import Size
from dovetail.ir.dtype import FLOATS, INTEGERS, bool_, i64
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, TupleType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint
from dovetail.ops.gradient import Parts
from dovetail.ops.primitive import Array, Axis, SizeAttr, family, primitive
from dovetail.ops.rules import one_dtype, tensor

_ORDERED = (*INTEGERS, *FLOATS, bool_)
_DEPTH_UNKNOWN = 16
"""Comparisons an element where the length is not known: enough for 65,536."""


def _comparisons(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    of = tensor(operands[0])
    axis: int = attrs["axis"]
    length = of.shape[axis]
    return of.count * (length.bit_length() if isinstance(length, int) else _DEPTH_UNKNOWN)


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Return the indices that sort x along an axis."""
    keys = x.astype(np.float32) if x.dtype.kind == "V" else x
    if not descending:
        return np.argsort(keys, axis=axis, kind="stable")
    # Sorted backwards from the back, equal elements come out in their own order.
    back = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(back, axis)


def _sort(facts: Facts, x: Type, *, axis: int, descending: bool) -> Type:
    of = tensor(x)
    one_dtype(facts, [of], _ORDERED)
    return TupleType((of, TensorType(i64, of.shape)))


def _order_pull(g: tuple[Value | None, ...], y: Value, x: Value, *, axis: int, **options: Any) -> Parts:
    """Send the gradient of each element of the result back to where it came from."""
    return (None if g[0] is None else adjoint.added_at(adjoint.zeros_like(x), y[1], g[0], axis),)


@primitive(_sort, flops=_comparisons, pull=_order_pull)
def sort(x: Array, *, axis: Axis = -1, descending: bool = False) -> tuple[Array, Array]:
    """The elements in order along an axis, and the index that each came from."""
    order = _order(x, axis, descending)
    return np.take_along_axis(x, order, axis), order


def _top_k(facts: Facts, x: Type, *, k: Size, axis: int, largest: bool, in_order: bool) -> Type:
    of = tensor(x)
    one_dtype(facts, [of], _ORDERED)
    facts.at_least(k, 0, "how many to keep")
    facts.at_least(of.shape[axis], k, "the axis, against how many to keep")
    shape = tuple(k if a - of.rank == axis else s for a, s in enumerate(of.shape))
    return TupleType((TensorType(of.dtype, shape), TensorType(i64, shape)))


@primitive(_top_k, flops=_comparisons, pull=_order_pull)
def top_k(
    x: Array, *, k: SizeAttr, axis: Axis = -1, largest: bool = True, in_order: bool = True
) -> tuple[Array, Array]:
    """The k largest or smallest elements along an axis and their indices: best first, or as they stand in x."""
    order = np.take(_order(x, axis, largest), np.arange(int(k)), axis)
    if not in_order:
        order = np.sort(order, axis)
    return np.take_along_axis(x, order, axis), order


FAMILY = family(globals())


__all__ = ["sort", "top_k"]

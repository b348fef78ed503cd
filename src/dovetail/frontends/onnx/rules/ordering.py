"""Sorting and what it tells, and running sums and products."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Ints, rule
from dovetail.frontends.shared.computed import numbers_in, sizes_or_run
from dovetail.frontends.shared.rule import Made
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end


@rule("CumSum")
def cum_sum(n: Node, x: Value, axis: Ints, *, exclusive: bool = False, reverse: bool = False) -> Value:
    """Running sum along an axis."""
    return ops.cum_sum(x, axis=_one(n, axis), exclusive=exclusive, reverse=reverse)


@rule("CumProd")
def cum_prod(n: Node, x: Value, axis: Ints, *, exclusive: bool = False, reverse: bool = False) -> Value:
    """Running product along an axis."""
    return ops.cum_prod(x, axis=_one(n, axis), exclusive=exclusive, reverse=reverse)


def _one(n: Node, axis: tuple[int, ...]) -> int:
    if len(axis) != 1:
        raise n.malformed(f"{len(axis)} axes where one is wanted")
    return axis[0]


@rule("ArgMax")
def arg_max(n: Node, x: Value, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False) -> Value:
    """The index of the largest element along an axis."""
    found = ops.arg_max(x, axis=axis, last=select_last_index)
    return found if keepdims else build.squeeze_dims(found, axis)


@rule("ArgMin")
def arg_min(n: Node, x: Value, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False) -> Value:
    """The index of the smallest element along an axis."""
    found = ops.arg_min(x, axis=axis, last=select_last_index)
    return found if keepdims else build.squeeze_dims(found, axis)


@rule("Hardmax", until=12)
def hardmax_of_rows(n: Node, x: Value, *, axis: int = 1) -> Value:
    """1 for the first of the largest elements of each row, 0 for the others; axes from one on are a row."""
    return build.reshape(_hardmax(build.flatten(x, axis=axis), -1), x.shape)


@rule("Hardmax", since=13)
def hardmax(n: Node, x: Value, *, axis: int = -1) -> Value:
    """1 for the first of the largest elements along an axis, 0 for the others."""
    return _hardmax(x, axis_from_end(axis, x.rank))


def _hardmax(x: Value, axis: int) -> Value:
    places = build.expand_dims(ops.iota(size=x.shape[axis]), range(1, -axis))
    return ops.cast(ops.equal(places, ops.arg_max(x, axis=axis)), dtype=x.dtype)


@rule("TopK", until=9)
def top_k_fixed(n: Node, x: Value, *, k: int, axis: int = -1) -> Made:
    """The largest elements along an axis, best first, and their indices."""
    best = ops.top_k(x, k=k, axis=axis)
    return best[0], best[1]


@rule("TopK", since=10)
def top_k(n: Node, x: Value, k: Value, *, axis: int = -1, largest: bool = True, sorted_: bool = True) -> Made:
    """The largest or smallest elements along an axis and their indices. Best first, also where that is not asked."""
    found = sizes_or_run(n, k, "k")
    if found is not None:
        best = ops.top_k(x, k=found[0], axis=axis, largest=largest)
        return best[0], best[1]
    ranked = ops.sort(x, axis=axis, descending=largest)
    kept = n.counted(numbers_in(n, k, "k")[0], "top_k")
    return ops.gather(ranked[0], kept, axis=axis), ops.gather(ranked[1], kept, axis=axis)

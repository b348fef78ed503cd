"""Reductions, running sums, and operators that order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast, computed_in_f32
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node, axes_of, axis_of, with_axis
from dovetail.frontends.torch.importing.rule import Number, rule
from dovetail.frontends.torch.rules.logic import truth
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import bool_, i64
from dovetail.ir.value import Value
from dovetail.ops import build

Axes = int | Sequence[int] | None


def _over(n: Node, x: Value, dim: Axes, function: Callable[..., Value]) -> Value:
    """A reduction over axes, in the shape that torch says; a number is its own."""
    axes = axes_of(x, dim)
    return build.reshape(function(x, axes=axes) if axes else x, n.shape)


@rule("sum.default")
def sum_all(n: Node, x: Value) -> Value:
    """The sum of all elements; integers add up in i64."""
    return _over(n, cast(x, n.dtype), None, ops.reduce_sum)


@rule("sum.dim_IntList")
def sum_(n: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """The sum over axes; integers add up in i64."""
    return _over(n, cast(x, n.dtype), dim, ops.reduce_sum)


@rule("mean.default")
def mean_all(n: Node, x: Value) -> Value:
    """The mean of all elements."""
    return _over(n, cast(x, n.dtype), None, ops.reduce_mean)


@rule("mean.dim")
def mean(n: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """The mean over axes."""
    return _over(n, cast(x, n.dtype), dim, ops.reduce_mean)


@rule("prod.default")
def prod_all(n: Node, x: Value) -> Value:
    """The product of all elements."""
    return _over(n, cast(x, n.dtype), None, ops.reduce_prod)


@rule("prod.dim_int")
def prod(n: Node, x: Value, dim: int, keepdim: bool = False) -> Value:
    """The product over an axis."""
    return _over(n, cast(x, n.dtype), dim, ops.reduce_prod)


@rule("amax.default")
def amax(n: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """The largest element over axes; NaN wins."""
    return _over(n, x, dim, ops.reduce_any if x.dtype is bool_ else ops.reduce_max)


@rule("amin.default")
def amin(n: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """The smallest element over axes; NaN wins."""
    return _over(n, x, dim, ops.reduce_all if x.dtype is bool_ else ops.reduce_min)


@rule("max.default")
def max_all(n: Node, x: Value) -> Value:
    """The largest of all elements."""
    return _over(n, x, None, ops.reduce_any if x.dtype is bool_ else ops.reduce_max)


@rule("min.default")
def min_all(n: Node, x: Value) -> Value:
    """The smallest of all elements."""
    return _over(n, x, None, ops.reduce_all if x.dtype is bool_ else ops.reduce_min)


@rule("max.dim", "min.dim")
def extreme(n: Node, x: Value, dim: int, keepdim: bool = False) -> Made:
    """The largest or smallest element along an axis, and its index."""
    largest = n.op_type.startswith("max")
    if x.dtype is bool_:
        raise n.unsupported("the extreme of booleans", hint="use any or all")
    values = _over(n, x, dim, ops.reduce_max if largest else ops.reduce_min)
    return values, _index(n, x, dim, largest, 1) if n.makes(1) else None


def _index(n: Node, x: Value, dim: int, largest: bool, result: int) -> Value:
    along = with_axis(x)
    found = (ops.arg_max if largest else ops.arg_min)(along, axis=axis_of(along, dim))
    return build.reshape(found, n.type_of(result).shape)


@rule("argmax.default", "argmin.default")
def arg_extreme(n: Node, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The index of the largest or smallest element along an axis, or among all."""
    flat = build.reshape(x, (-1,)) if dim is None else x
    numbers = ops.cast(flat, dtype=i64) if flat.dtype is bool_ else flat
    return _index(n, numbers, -1 if dim is None else dim, n.op_type.startswith("argmax"), 0)


@rule("any.default", "all.default")
def any_all(n: Node, x: Value) -> Value:
    """Whether any element, or each, differs from 0."""
    return cast(_over(n, truth(x), None, ops.reduce_any if n.op_type.startswith("any") else ops.reduce_all), n.dtype)


@rule("any.dim", "any.dims", "all.dim", "all.dims")
def any_(n: Node, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """Whether any element over axes, or each, differs from 0."""
    function = ops.reduce_any if n.op_type.startswith("any") else ops.reduce_all
    if isinstance(dim, list | tuple) and not dim:
        return cast(truth(x), n.dtype)
    return cast(_over(n, truth(x), dim, function), n.dtype)


def _spread(n: Node, x: Value, dim: Axes, correction: Number | None) -> Value:
    """The variance over axes, in the shape with axes of size 1."""
    axes = axes_of(x, dim)
    count: Size = 1
    for axis in axes:
        count = count * x.shape[axis]
    wide = computed_in_f32(x)
    if not axes:
        return wide * float("nan") if correction is None or float(_plain(correction)) >= 1 else wide * 0.0
    less = 1.0 if correction is None else float(_plain(correction))
    centred = wide - ops.reduce_mean(wide, axes=axes)
    total = ops.reduce_sum(centred * centred, axes=axes)
    left = ops.cast(ops.extent(size=count), dtype=wide.dtype) - less if isinstance(count, Dim) else max(count - less, 0)
    return total / left


def _plain(number: Number) -> float:
    assert isinstance(number, int | float)
    return number


@rule("var.correction")
def var(n: Node, x: Value, dim: Axes = None, *, correction: Number | None = None, keepdim: bool = False) -> Value:
    """The variance over axes."""
    return build.reshape(cast(_spread(n, x, dim, correction), n.dtype), n.shape)


@rule("std.correction")
def std(n: Node, x: Value, dim: Axes = None, *, correction: Number | None = None, keepdim: bool = False) -> Value:
    """The standard deviation over axes."""
    return build.reshape(cast(ops.sqrt(_spread(n, x, dim, correction)), n.dtype), n.shape)


@rule("var_mean.correction")
def var_mean(n: Node, x: Value, dim: Axes = None, *, correction: Number | None = None, keepdim: bool = False) -> Made:
    """The variance and the mean over axes."""
    spread = build.reshape(cast(_spread(n, x, dim, correction), n.type_of(0).dtype), n.type_of(0).shape)
    axes = axes_of(x, dim)
    middle = ops.reduce_mean(computed_in_f32(x), axes=axes) if axes else x
    return spread, build.reshape(cast(middle, n.type_of(1).dtype), n.type_of(1).shape)


@rule("logsumexp.default")
def logsumexp(n: Node, x: Value, dim: Axes, keepdim: bool = False) -> Value:
    """The logarithm of the sum of exponentials over axes, without overflow."""
    wide = computed_in_f32(cast(x, n.dtype))
    axes = axes_of(x, dim)
    if not axes:
        return cast(x, n.dtype)
    top = ops.reduce_max(wide, axes=axes)
    safe = ops.where(ops.is_finite(top), top, leaf.scalar(0, wide.dtype))
    y = ops.log(ops.reduce_sum(ops.exp(wide - safe), axes=axes)) + safe
    return build.reshape(cast(y, n.dtype), n.shape)


@rule("linalg_vector_norm.default")
def vector_norm(n: Node, x: Value, ord: Number = 2, dim: Axes = None, keepdim: bool = False) -> Value:
    """The p-norm over axes."""
    wide = computed_in_f32(cast(x, n.dtype) if x.dtype.is_float else x)
    size = ops.abs_(wide)
    power = float(_plain(ord))
    axes = axes_of(x, dim)
    if not axes:
        return cast(ops.not_equal(size, 0) if power == 0.0 else size, n.dtype)
    return build.reshape(cast(_norm(size, power, axes), n.dtype), n.shape)


@rule("_cdist_forward.default", "cdist.default")
def cdist(n: Node, x: Value, other: Value, p: float = 2.0, compute_mode: int | None = None) -> Value:
    """The p-norm of the difference of each row of one matrix to each of another."""
    apart = ops.abs_(ops.unsqueeze(x, axes=(-2,)) - ops.unsqueeze(other, axes=(-3,)))
    if x.shape[-1] == 0:
        return build.zeros(n.shape, n.dtype)
    return build.squeeze_dims(_norm(apart, float(p)), -1)


@rule("_pdist_forward.default")
def pdist(n: Node, x: Value, p: float = 2.0) -> Value:
    """The p-norm of the difference of each pair of rows."""
    rows = x.shape[0]
    if not isinstance(rows, int):
        raise n.unsupported("pairs of rows whose number is not known", hint="export it with fixed sizes")
    if rows < 2 or x.shape[1] == 0:
        return build.zeros(n.shape, n.dtype)
    pairs = np.stack(np.triu_indices(rows, 1)).astype(np.int64)
    left, right = (ops.gather(x, leaf.constant(places), axis=-2) for places in pairs)
    return build.squeeze_dims(_norm(ops.abs_(left - right), float(p)), -1)


def _norm(sizes: Value, power: float, axes: Sequence[int] = (-1,)) -> Value:
    """The p-norm of sizes along axes, which stay. Its gradient at 0 is 0, as torch has it."""
    axes = tuple(axes)
    if power == 0.0:
        return ops.reduce_sum(cast(ops.not_equal(sizes, 0.0), sizes.dtype), axes=axes)
    if math.isinf(power):
        return (ops.reduce_max if power > 0 else ops.reduce_min)(sizes, axes=axes)
    if power == 1.0:
        return ops.reduce_sum(sizes, axes=axes)
    raised = sizes * sizes if power == 2.0 else ops.pow_(sizes, power)
    if 0.0 < power < 1.0:
        raised = ops.where(ops.equal(sizes, 0.0), 0.0, raised)
    total = ops.reduce_sum(raised, axes=axes)
    root = ops.sqrt(total) if power == 2.0 else ops.pow_(total, 1.0 / power)
    return ops.where(ops.equal(total, 0.0), 0.0, root) if power > 0.0 else root


@rule("cumsum.default", "cumprod.default")
def cumulative(n: Node, x: Value, dim: int) -> Value:
    """The running sum or product along an axis."""
    if x.rank == 0:
        return cast(x, n.dtype)
    function = ops.cum_sum if n.op_type.startswith("cumsum") else ops.cum_prod
    return function(cast(x, n.dtype), axis=axis_of(x, dim))


@rule("sort.default")
def sort(n: Node, x: Value, dim: int = -1, descending: bool = False) -> Made:
    """The elements in order along an axis, and where each came from."""
    return _sorted(n, x, dim, descending)


@rule("sort.stable")
def sort_stable(n: Node, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Made:
    """The elements in order along an axis, and where each came from; equal ones keep their order."""
    return _sorted(n, x, dim, descending)


def _sorted(n: Node, x: Value, dim: int, descending: bool) -> Made:
    along = with_axis(x)
    found = ops.sort(along, axis=axis_of(along, dim), descending=descending)
    return tuple(build.reshape(found[i], x.shape) for i in (0, 1))


@rule("topk.default")
def topk(n: Node, x: Value, k: Size, dim: int = -1, largest: bool = True, sorted: bool = True) -> Made:
    """The k largest or smallest elements along an axis, and their indices."""
    along = with_axis(x)
    found = ops.top_k(along, k=k, axis=axis_of(along, dim), largest=largest)
    return tuple(build.reshape(found[i], n.type_of(i).shape) for i in (0, 1))


@rule("histc.default")
def histc(n: Node, x: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    """How many elements are in each of equal bins between min and max."""
    low, high = _plain(min), _plain(max)
    if low == high:
        raise n.unsupported("bins between bounds that the data has", hint="pass min and max")
    flat = build.reshape(x, (-1,))
    numbers = computed_in_f32(cast(flat, n.dtype))
    inside = ops.bit_and(ops.greater_equal(numbers, float(low)), ops.less_equal(numbers, float(high)))
    place = ops.floor((numbers - float(low)) * (bins / (float(high) - float(low))))
    place = ops.clip(ops.where(inside, place, -1.0), -1.0, float(bins - 1))
    hit = ops.equal(build.expand_dims(place, 1), ops.cast(ops.iota(size=bins), dtype=place.dtype))
    return build.reshape(cast(ops.reduce_sum(ops.cast(hit, dtype=i64), axes=(-2,)), n.dtype), (bins,))

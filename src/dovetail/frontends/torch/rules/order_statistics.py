"""Order statistics: medians, the k-th value, the mode, and where running extremes are."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.dtypes import cast, computed_in_f32
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node, axis_of, with_axis
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ops import build


def _at(n: Node, x: Value, axis: int, place: Value, index: int) -> Value:
    """The element of each row at its place; places have an axis of size 1."""
    return build.reshape(ops.gather_elements(x, place, axis=axis), n.type_of(index).shape)


def _placed(n: Node, x: Value, dim: int, place: Value) -> Made:
    """The elements of the sorted rows at places, and where they came from."""
    axis = axis_of(x, dim)
    found = ops.sort(x, axis=axis)
    values = _at(n, found[0], axis, place, 0)
    return values, _at(n, found[1], axis, place, 1) if n.makes(1) else None


def _reduced(x: Value, axis: int) -> tuple[Size, ...]:
    return tuple(1 if a - x.rank == axis else s for a, s in enumerate(x.shape))


def _middle(n: Node, x: Value, dim: int, *, ignoring: bool) -> Value:
    """The place of the lower median in each sorted row, where NaN is last; a row with NaN has its first one."""
    axis = axis_of(x, dim)
    length = size_value(x.shape[axis])
    if not x.dtype.is_float:
        return build.broadcast_to(ops.floor_div(length - 1, leaf.scalar(2, i64)), _reduced(x, axis))
    numbers = ops.reduce_sum(ops.cast(ops.bit_not(ops.is_nan(x)), dtype=i64), axes=(axis,))
    middle = ops.floor_div(ops.maximum(numbers - 1, 0), leaf.scalar(2, i64))
    return middle if ignoring else ops.where(ops.equal(numbers, length), middle, numbers)


@rule("median.dim", "nanmedian.dim")
def median(n: Node, x: Value, dim: int, keepdim: bool = False) -> Made:
    """The lower median along an axis and its index; nanmedian leaves NaN out."""
    along = with_axis(x)
    return _placed(n, along, dim, _middle(n, along, dim, ignoring=n.op_type.startswith("nan")))


@rule("median.default", "nanmedian.default")
def median_all(n: Node, x: Value) -> Value:
    """The lower median of all elements; nanmedian leaves NaN out."""
    if x.tensor.count == 0:
        return n.value(float("nan"), n.dtype)
    flat = build.reshape(x, (-1,))
    return _at(n, ops.sort(flat)[0], -1, _middle(n, flat, -1, ignoring=n.op_type.startswith("nan")), 0)


@rule("kthvalue.default")
def kthvalue(n: Node, x: Value, k: Size, dim: int = -1, keepdim: bool = False) -> Made:
    """The k-th smallest element along an axis, and its index."""
    along = with_axis(x)
    place = build.broadcast_to(size_value(k) - 1, _reduced(along, axis_of(along, dim)))
    return _placed(n, along, dim, place)


@rule("mode.default")
def mode(n: Node, x: Value, dim: int = -1, keepdim: bool = False) -> Made:
    """The smallest of the most frequent elements along an axis, and the last index that has it."""
    along = with_axis(x)
    axis = axis_of(along, dim)
    last = build.move_axis(along, axis, -1)
    if isinstance(last.shape[-1], Dim):
        raise n.unsupported("the mode of an axis whose size is not known", hint="export the model with fixed sizes")
    ordered = ops.sort(last)[0]
    same = ops.equal(build.expand_dims(ordered, -1), build.expand_dims(ordered, -2))
    often = build.squeeze_dims(ops.reduce_sum(ops.cast(same, dtype=i64), axes=(-1,)), -1)
    place = ops.arg_max(often, axis=-1)
    value = ops.gather_elements(ordered, place, axis=-1)
    numbers = ops.iota(size=last.shape[-1])
    index = ops.reduce_max(ops.where(ops.equal(last, value), numbers, -1), axes=(-1,))
    return build.reshape(value, n.type_of(0).shape), build.reshape(index, n.type_of(1).shape)


@rule("cummax.default", "cummin.default")
def running_extreme(n: Node, x: Value, dim: int) -> Made:
    """The running maximum or minimum along an axis, and the last index that has it."""
    if x.rank == 0:
        return x, build.zeros((), i64)
    axis = axis_of(x, dim)
    found = (ops.cum_max if n.op_type.startswith("cummax") else ops.cum_min)(x, axis=axis)
    if not n.makes(1):
        return found, None
    places = ops.iota(size=x.shape[axis])
    shaped = build.expand_dims(places, range(1, -axis)) if axis < -1 else places
    hit = ops.equal(x, found)
    if x.dtype.is_float:
        hit = ops.bit_or(hit, ops.is_nan(x))
    return found, ops.cum_max(ops.where(hit, shaped, 0), axis=axis)


@rule("logcumsumexp.default")
def logcumsumexp(n: Node, x: Value, dim: int) -> Value:
    """The logarithm of the running sum of exponentials along an axis, relative to the largest so far."""
    if x.rank == 0:
        return x
    axis = axis_of(x, dim)
    wide = computed_in_f32(x)
    fronted = build.move_axis(wide, axis, 0)
    if fronted.shape[0] == 0:
        return x
    start = build.full(fronted.shape[1:], float("-inf"), wide.dtype)

    def step(total: Value, one: Value) -> tuple[Value, Value]:
        top = ops.maximum(total, one)
        apart = ops.minimum(total, one) - top
        # Of two equal infinities the difference is NaN, and the sum is the larger one.
        found = ops.where(ops.is_inf(top), top, top + ops.log1p(ops.exp(apart)))
        return found, found

    found = ops.scan(step, [start], [fronted]).outputs[0]
    return cast(build.move_axis(found, 0, axis + x.rank), n.dtype)

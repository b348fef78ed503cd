"""Relative movement: where elements go, said without absolute shapes wherever that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.fact import Facts
from dovetail.ir.leaf import scalar
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint
from dovetail.ops.gradient import Constant, Parts
from dovetail.ops.primitive import (
    Array,
    Axes,
    Axis,
    Ints,
    SizeAttr,
    family,
    no_flops,
    primitive,
)
from dovetail.ops.rules import one_dtype, tensor


def _put(of: TensorType, axis: int, *sizes: Size) -> TensorType:
    """Return the type with one axis replaced by others."""
    at = axis + of.rank
    return TensorType(of.dtype, (*of.shape[:at], *sizes, *of.shape[at + 1 :]))


def _split(facts: Facts, x: Type, *, axis: int, parts: Size | None, size: Size | None) -> Type:
    of = tensor(x)
    whole = of.shape[axis]
    if (parts is None) == (size is None):
        raise TypeRuleError("split takes either parts or size", hint="pass parts=h for [h, n/h], size=d for [n/d, d]")
    if parts is not None:
        return _put(of, axis, parts, facts.multiple(whole, parts, "an axis split into parts"))
    assert size is not None
    return _put(of, axis, facts.multiple(whole, size, "an axis split by size"), size)


def split_of_nothing(attrs: Mapping[str, Any], shape: Sequence[Size]) -> dict[str, Any]:
    """Return the attributes of a split to this shape: by size where 0 parts leave it open, or by parts."""
    axis: int = attrs["axis"]
    if attrs["parts"] == 0:
        return {**attrs, "parts": None, "size": shape[axis]}
    return {**attrs, "parts": shape[axis - 1], "size": None} if attrs["size"] == 0 else dict(attrs)


def _split_pull(g: Value, y: Value, x: Value, *, axis: int, parts: Size | None, size: Size | None) -> Parts:
    return (adjoint.stated(merge(g, axis=axis), x.shape),)


@primitive(_split, flops=no_flops, view=True, pull=_split_pull)
def split(x: Array, *, axis: Axis, parts: SizeAttr | None = None, size: SizeAttr | None = None) -> Array:
    """One axis of n becomes [parts, n / parts], or [n / size, size]."""
    at = axis + x.ndim
    whole = x.shape[at]
    outer = parts if parts is not None else whole // size
    inner = size if size is not None else whole // parts
    return x.reshape((*x.shape[:at], outer, inner, *x.shape[at + 1 :]))


def _merge(facts: Facts, x: Type, *, axis: int, count: int) -> Type:
    of = tensor(x)
    first = axis + of.rank - count + 1
    if count < 2 or first < 0:
        raise TypeRuleError(f"merge of {count} axes up to {axis} of rank {of.rank}", hint="merge two axes or more")
    merged = product(of.shape[first : first + count])
    return TensorType(of.dtype, (*of.shape[:first], merged, *of.shape[first + count :]))


def _merge_pull(g: Value, y: Value, x: Value, *, axis: int, count: int) -> Parts:
    if 0 in x.shape:  # nothing says how an empty axis is split
        return (adjoint.zeros_like(x),)
    for at in range(axis, axis - count + 1, -1):  # the last of the merged axes first
        g = split(g, axis=at, size=x.shape[at])
    return (adjoint.stated(g, x.shape),)


@primitive(_merge, flops=no_flops, view=True, pull=_merge_pull)
def merge(x: Array, *, axis: Axis, count: int = 2) -> Array:
    """`count` neighbouring axes, the last of them `axis`, become one."""
    first = axis + x.ndim - count + 1
    size = int(np.prod(x.shape[first : first + count], dtype=np.int64))
    return x.reshape((*x.shape[:first], size, *x.shape[first + count :]))


def _unsqueeze(facts: Facts, x: Type, *, axes: tuple[int, ...]) -> Type:
    of = tensor(x)
    rank = of.rank + len(axes)
    if len(set(axes)) != len(axes) or any(not -rank <= a < 0 for a in axes):
        raise TypeRuleError(f"unsqueeze at {axes} of rank {of.rank}", hint="count axes of the result from the end")
    rest = iter(of.shape)
    return TensorType(of.dtype, tuple(1 if a in axes else next(rest) for a in range(-rank, 0)))


def _unsqueeze_pull(g: Value, y: Value, x: Value, *, axes: tuple[int, ...]) -> Parts:
    return (squeeze(g, axes=axes),)


@primitive(_unsqueeze, flops=no_flops, view=True, pull=_unsqueeze_pull)
def unsqueeze(x: Array, *, axes: Ints) -> Array:
    """Axes of size 1 are put in; they are counted in the result, from the end."""
    return np.expand_dims(x, axes)


def _squeeze(facts: Facts, x: Type, *, axes: tuple[int, ...]) -> Type:
    of = tensor(x)
    for axis in axes:
        facts.equal(of.shape[axis], 1, "an axis that is squeezed out")
    return TensorType(of.dtype, tuple(s for a, s in enumerate(of.shape) if a - of.rank not in axes))


def _squeeze_pull(g: Value, y: Value, x: Value, *, axes: tuple[int, ...]) -> Parts:
    return (adjoint.stated(unsqueeze(g, axes=axes), x.shape),)


@primitive(_squeeze, flops=no_flops, view=True, pull=_squeeze_pull)
def squeeze(x: Array, *, axes: Axes) -> Array:
    """Axes of size 1 are left out."""
    return np.squeeze(x, axes)


def _permute(facts: Facts, x: Type, *, order: tuple[int, ...]) -> Type:
    of = tensor(x)
    if sorted(order) != list(range(-len(order), 0)) or len(order) > of.rank:
        raise TypeRuleError(
            f"permute by {order} of rank {of.rank}", hint="name each of the last axes once, counted from the end"
        )
    kept = of.rank - len(order)
    return TensorType(of.dtype, (*of.shape[:kept], *(of.shape[a] for a in order)))


def _permute_pull(g: Value, y: Value, x: Value, *, order: tuple[int, ...]) -> Parts:
    count = len(order)
    return (permute(g, order=tuple(order.index(axis) - count for axis in range(-count, 0))),)


@primitive(_permute, flops=no_flops, view=True, pull=_permute_pull)
def permute(x: Array, *, order: Ints) -> Array:
    """The last axes in another order; those in front of them stay."""
    kept = x.ndim - len(order)
    return np.transpose(x, (*range(kept), *(a + x.ndim for a in order)))


def _slice(facts: Facts, x: Type, *, axis: int, start: Size, stop: Size, step: int) -> Type:
    of = tensor(x)
    whole = of.shape[axis]
    if step == 0:
        raise TypeRuleError("slice with step 0", hint="use a step of 1 or more, or flip first")
    if step < 0:
        raise TypeRuleError(f"slice with step {step}", hint="flip the axis, then slice with a positive step")
    facts.at_least(start, 0, "where a slice starts")
    facts.at_least(stop, start, "where a slice ends, against where it starts")
    facts.at_least(whole, stop, "the axis, against where a slice ends")
    length = stop - start
    return _put(of, axis, length if step == 1 else floordiv(length + (step - 1), step))


def _slice_pull(g: Value, y: Value, x: Value, *, axis: int, start: Size, stop: Size, step: int) -> Parts:
    whole = x.shape[axis]
    if step == 1:
        return (_zeros_around(g, axis, start, whole - stop),)
    # Each element is followed by the elements that the step skipped: zeros.
    spread = merge(_zeros_around(unsqueeze(g, axes=(axis,)), axis, 0, step - 1), axis=axis)
    beyond = start + spread.shape[axis] - whole
    if not isinstance(beyond, int):
        spread = _zeros_around(spread, axis, 0, whole)
    elif beyond < 0:
        spread = _zeros_around(spread, axis, 0, -beyond)
    if spread.shape[axis] != whole - start:
        spread = slice_(spread, axis=axis, start=0, stop=whole - start)
    return (_zeros_around(spread, axis, start, 0),)


def _zeros_around(g: Value, axis: int, before: Size, after: Size) -> Value:
    if before == 0 and after == 0:
        return g
    return pad(g, scalar(0, g.dtype), axis=axis, before=before, after=after)


@primitive(_slice, flops=no_flops, view=True, pull=_slice_pull, name="slice")
def slice_(x: Array, *, axis: Axis, start: SizeAttr, stop: SizeAttr, step: int = 1) -> Array:
    """Elements start, start + step, … below stop along an axis."""
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def _part(facts: Facts, x: Type, *, axis: int, index: int, parts: int) -> Type:
    of = tensor(x)
    if parts < 1 or not 0 <= index < parts:
        raise TypeRuleError(f"part {index} of {parts}", hint="count parts from 0")
    return _put(of, axis, facts.multiple(of.shape[axis], parts, "an axis cut into equal parts"))


def _part_pull(g: Value, y: Value, x: Value, *, axis: int, index: int, parts: int) -> Parts:
    one = y.shape[axis]
    return (adjoint.stated(_zeros_around(g, axis, one * index, one * (parts - 1 - index)), x.shape),)


@primitive(_part, flops=no_flops, view=True, pull=_part_pull)
def part(x: Array, *, axis: Axis, index: int, parts: int) -> Array:
    """One of several equal parts of an axis."""
    return np.split(x, parts, axis=axis)[index]


def _expand(facts: Facts, x: Type, *, axis: int, size: Size) -> Type:
    of = tensor(x)
    facts.equal(of.shape[axis], 1, "an axis that is expanded")
    return _put(of, axis, size)


def _expand_pull(g: Value, y: Value, x: Value, *, axis: int, size: Size) -> Parts:
    return (adjoint.sum_over(g, (axis,)),)


@primitive(_expand, flops=no_flops, view=True, pull=_expand_pull)
def expand(x: Array, *, axis: Axis, size: SizeAttr) -> Array:
    """An axis of size 1 is repeated `size` times."""
    return np.repeat(x, size, axis=axis)


def _pad(facts: Facts, x: Type, y: Type, *, axis: int, before: Size, after: Size) -> Type:
    of = tensor(x)
    one_dtype(facts, [of, tensor(y)], EVERY)
    if tensor(y).rank != 0:
        raise TypeRuleError(f"pad with {y}", hint="the padding is one number")
    for amount in (before, after):
        facts.at_least(amount, 0, "an amount of padding")
    return _put(of, axis, of.shape[axis] + before + after)


def _pad_pull(g: Value, y: Value, x: Value, value: Value, *, axis: int, before: Size, after: Size) -> Parts:
    inner = slice_(g, axis=axis, start=before, stop=before + x.shape[axis])
    around = adjoint.unbroadcast(g, ()) - adjoint.unbroadcast(inner, ())
    return inner, around


@primitive(_pad, flops=no_flops, pull=_pad_pull)
def pad(x: Array, value: Array, *, axis: Axis, before: SizeAttr = 0, after: SizeAttr = 0) -> Array:
    """One number before and after an axis."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return np.pad(x, widths, constant_values=value)


def _concat(facts: Facts, *operands: Type, axis: int) -> Type:
    types = [tensor(t) for t in operands]
    if not types:
        raise TypeRuleError("concat of nothing", hint="pass one tensor or more")
    dtype = one_dtype(facts, types, EVERY)
    rank = types[0].rank
    if any(t.rank != rank for t in types):
        raise TypeRuleError(f"concat of ranks {[t.rank for t in types]}", hint="give all operands one rank")
    shape: list[Size] = list(types[0].shape)
    for other in types[1:]:
        for i in range(rank):
            if i - rank == axis:
                shape[i] = shape[i] + other.shape[i]
            else:
                shape[i] = facts.equal(shape[i], other.shape[i], "sizes beside the joined axis")
    return TensorType(dtype, tuple(shape))


def _concat_pull(g: Value, y: Value, *xs: Value, axis: int) -> Parts:
    gradients: list[Value] = []
    start: Size = 0
    for x in xs:
        stop = start + x.shape[axis]
        gradients.append(adjoint.stated(slice_(g, axis=axis, start=start, stop=stop), x.shape))
        start = stop
    return tuple(gradients)


@primitive(_concat, flops=no_flops, pull=_concat_pull)
def concat(*xs: Array, axis: Axis) -> Array:
    """Concatenation along an axis."""
    return np.concatenate(xs, axis=axis)


def _sized(facts: Facts, x: Type, *, axis: int, size: Size) -> Type:
    of = tensor(x)
    facts.equal(of.shape[axis], size, "an axis whose size is stated")
    return _put(of, axis, size)


def _sized_pull(g: Value, y: Value, x: Value, *, axis: int, size: Size) -> Parts:
    return (sized(g, axis=axis, size=x.shape[axis]),)


@primitive(_sized, flops=no_flops, view=True, pull=_sized_pull)
def sized(x: Array, *, axis: Axis, size: SizeAttr) -> Array:
    """The same elements; how many there are along an axis is stated, where it does not follow from the shapes."""
    return x


def _flip(facts: Facts, x: Type, *, axes: tuple[int, ...]) -> Type:
    return tensor(x)


def _flip_pull(g: Value, y: Value, x: Value, *, axes: tuple[int, ...]) -> Parts:
    return (flip(g, axes=axes),)


@primitive(_flip, flops=no_flops, view=True, pull=_flip_pull)
def flip(x: Array, *, axes: Axes) -> Array:
    """The order of elements along axes, reversed."""
    return np.flip(x, axes)


def _again(facts: Facts, x: Type) -> Type:
    return tensor(x)


def _again_pull(g: Value, y: Value, x: Value) -> Parts:
    return (g,)


@primitive(_again, flops=no_flops, view=True, pull=_again_pull)
def again(x: Array) -> Array:
    """The same elements as another value: what is computed from it is computed again, and not shared."""
    return x


@primitive(_again, flops=no_flops, view=True, pull=Constant("it says that nothing flows"))
def stop_gradient(x: Array) -> Array:
    """The same elements, through which no gradient flows. Compiling removes it."""
    return x


FAMILY = family(globals())


__all__ = [
    "again", "concat", "expand", "flip", "merge", "pad", "part", "permute", "sized", "slice_", "split", "squeeze",
    "stop_gradient", "unsqueeze",
]  # fmt: skip

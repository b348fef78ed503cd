"""Builders that read shapes: absolute reshapes, slices with Python's bounds, broadcasts. For importers and models.

Bodies of declared ops use the relative primitives instead; only `swap` fits there as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, product
from dovetail.ir.dtype import DType, i64
from dovetail.ir.value import Value
from dovetail.ops.elementwise import less_equal, where
from dovetail.ops.generate import extent, iota, lower_triangle
from dovetail.ops.movement import (
    concat,
    expand,
    flip,
    merge,
    pad,
    part,
    permute,
    sized,
    slice_,
    squeeze,
    unsqueeze,
)
from dovetail.ops.primitive import Operand, axis_from_end
from dovetail.ops.reshaping import reshape, spell_shape
from dovetail.ops.view import View, quotient
from dovetail.ops.view_chain import build_view

_FAR = 2**31 - 1
"""Bounds from here on mean the end of an axis, as exporters write them."""


def flatten(x: Value, *, axis: int = 1) -> Value:
    """Return a matrix: the axes in front of `axis` are its rows, the others its columns."""
    at = axis + x.rank if axis < 0 else axis
    if not 0 <= at <= x.rank:
        raise TypeRuleError(f"flatten at axis {axis} of rank {x.rank}", hint=f"use 0 to {x.rank}")
    return reshape(x, (product(x.shape[:at]), product(x.shape[at:])))


def transpose(x: Value, permutation: Sequence[int] | None = None) -> Value:
    """Return x with its axes in another order, counted from the front as NumPy does; reversed by default."""
    rank = x.rank
    order = tuple(range(rank))[::-1] if permutation is None else tuple(permutation)
    named = [axis_from_end(a, rank) for a in order]
    if sorted(named) != list(range(-rank, 0)):
        raise TypeRuleError(f"transpose of rank {rank} by {order}", hint="name each axis once")
    return _ordered(x, named)


def swap(x: Value, a: int, b: int) -> Value:
    """Exchange two axes. Counted from the end, it fits into bodies of declared ops."""
    rank = None if x.known_type is None else x.rank
    first, second = axis_from_end(a, rank), axis_from_end(b, rank)
    order = list(range(min(first, second), 0))
    order[first], order[second] = second, first
    return _ordered(x, order)


def move_axis(x: Value, source: int, target: int) -> Value:
    """Move one axis to another place; the others close up."""
    rank = x.rank
    order = list(range(-rank, 0))
    moved = order.pop(axis_from_end(source, rank) + rank)
    order.insert(axis_from_end(target, rank) + rank, moved)
    return _ordered(x, order)


def _ordered(x: Value, order: Sequence[int]) -> Value:
    start = 0
    while start < len(order) and order[start] == start - len(order):
        start += 1
    return x if start == len(order) else permute(x, order=tuple(order[start:]))


def expand_dims(x: Value, axes: int | Sequence[int]) -> Value:
    """Axes of size 1 are put in, counted in the result from either end."""
    listed = (axes,) if isinstance(axes, int) else tuple(axes)
    if not listed:
        return x
    rank = x.rank + len(listed)
    return unsqueeze(x, axes=tuple(sorted(axis_from_end(a, rank) for a in listed)))


def squeeze_dims(x: Value, axes: int | Sequence[int] | None = None) -> Value:
    """Axes of size 1 are left out: those named, or all that are known to have that size."""
    if axes is None:
        listed = tuple(i for i, size in enumerate(x.shape) if size == 1)
    else:
        listed = (axes,) if isinstance(axes, int) else tuple(axes)
    return squeeze(x, axes=listed) if listed else x


def broadcast_to(x: Value, shape: Sequence[Size]) -> Value:
    """x stretched to a shape: new axes in front, axes of size 1 repeated."""
    target = tuple(shape)
    lead = len(target) - x.rank
    if lead < 0:
        raise TypeRuleError(f"{x.type} broadcast to {spell_shape(target)}", hint="a broadcast keeps all axes")
    y = unsqueeze(x, axes=tuple(range(-len(target), -x.rank))) if lead else x
    for axis in range(-len(target), 0):
        current, size = y.shape[axis], target[axis]
        if current == size:
            continue
        if current == 1:
            y = expand(y, axis=axis, size=size)
        elif isinstance(current, int) and isinstance(size, int):
            raise TypeRuleError(
                f"{x.type} broadcast to {spell_shape(target)}",
                hint=f"{current} does not stretch to {size}; only 1 does",
            )
        else:
            y = sized(y, axis=axis, size=size)
    return y


def slice_axis(x: Value, *, axis: int, start: Size | None = None, stop: Size | None = None, step: int = 1) -> Value:
    """x[start:stop:step] along an axis, as Python counts; bounds of a known size are clamped, others recorded."""
    if step == 0:
        raise TypeRuleError("a slice with step 0", hint="use another step")
    axis = axis_from_end(axis, x.rank)
    whole = x.shape[axis]
    if step > 0:
        first = _bound(0 if start is None else start, whole, 0)
        last = _bound(whole if stop is None else stop, whole, 0)
        return cut(x, axis, first, last, step)
    # Going down from `start` to above `stop` is going up in the reversed axis.
    first = whole - 1 if start is None else _bound(start, whole, -1)
    last: Size = -1 if stop is None else _bound(stop, whole, -1)
    turned = flip(x, axes=(axis,))
    return cut(turned, axis, whole - 1 - first, whole - 1 - last, -step)


def _bound(bound: Size, whole: Size, lowest: int) -> Size:
    """Return a bound counted from the front; `lowest` is where the axis ends for the direction of the slice."""
    if isinstance(whole, int) and isinstance(bound, int):
        counted = bound + whole if bound < 0 else bound
        return max(lowest, min(counted, whole + lowest))
    if isinstance(bound, int):
        if bound >= _FAR:
            return whole + lowest
        if bound <= -_FAR:
            return lowest
        return whole + bound if bound < 0 else bound
    return bound


def cut(x: Value, axis: int, start: Size, stop: Size, step: int = 1) -> Value:
    """Elements start, start + step, … below stop of an axis counted from the end, in their simplest form."""
    whole = x.shape[axis]
    if isinstance(start, int) and isinstance(stop, int):
        count = max(0, -((start - stop) // step))
        if count <= 1:
            start, stop, step = (start, start + 1, 1) if count else (0, 0, 1)
        else:
            stop = start + (count - 1) * step + 1
    if step != 1:
        return _every(x, axis, start, stop, step)
    if start == 0 and stop == whole:
        return x
    length = stop - start
    parts = quotient(whole, length)
    index = 0 if start == 0 else quotient(start, length)
    if isinstance(parts, int) and isinstance(index, int) and length != 0 and index < parts:
        return part(x, axis=axis, index=index, parts=parts)
    return slice_(x, axis=axis, start=start, stop=stop)


def _every(x: Value, axis: int, start: Size, stop: Size, step: int) -> Value:
    """Return every step-th element. Where that is all of them, it is one part of the axis split by the step."""
    whole = x.shape[axis]
    outer = quotient(whole, step)
    if outer is not None and isinstance(start, int) and start < step and stop in (whole, whole - step + start + 1):
        view = View(x)
        at = axis + x.rank
        fits = view.reshape((*x.shape[:at], outer, step, *x.shape[at + 1 :]))
        pairs = build_view(view) if fits else None
        if pairs is not None:
            return squeeze(part(pairs, axis=axis, index=start, parts=step), axes=(axis,))
    return slice_(x, axis=axis, start=start, stop=stop, step=step)


def select(x: Value, *, axis: int, index: Size) -> Value:
    """Return one element of an axis, without the axis."""
    axis = axis_from_end(axis, x.rank)
    whole = x.shape[axis]
    at = whole + index if isinstance(index, int) and index < 0 else index
    if isinstance(at, int) and isinstance(whole, int) and not 0 <= at < whole:
        raise TypeRuleError(f"element {index} of an axis of {whole}", hint=f"use {-whole} to {whole - 1}")
    return squeeze(cut(x, axis, at, at + 1), axes=(axis,))


def split_axis(x: Value, sizes: Sequence[Size], *, axis: int) -> tuple[Value, ...]:
    """Cut an axis into consecutive pieces of these sizes."""
    axis = axis_from_end(axis, x.rank)
    total: Size = 0
    for size in sizes:
        total = total + size
    whole = x.shape[axis]
    if total != whole:
        if isinstance(total - whole, int):
            raise TypeRuleError(
                f"an axis of {whole} cut into {spell_shape(sizes)}", hint=f"the sizes add up to {total}"
            )
        x = sized(x, axis=axis, size=total)
    pieces: list[Value] = []
    start: Size = 0
    for size in sizes:
        pieces.append(cut(x, axis, start, start + size))
        start = start + size
    return tuple(pieces)


def stack(values: Sequence[Value], *, axis: int = 0) -> Value:
    """Tensors of one shape side by side along a new axis."""
    if not values:
        raise TypeRuleError("a stack of nothing", hint="pass one tensor or more")
    at = axis_from_end(axis, values[0].rank + 1)
    columns = [unsqueeze(v, axes=(at,)) for v in values]
    return columns[0] if len(columns) == 1 else concat(*columns, axis=at)


def tile(x: Value, repeats: Sequence[Size]) -> Value:
    """x repeated along each axis."""
    if len(repeats) != x.rank:
        raise TypeRuleError(f"a tile of rank {x.rank} by {spell_shape(repeats)}", hint="give one number for each axis")
    for axis, count in zip(range(-x.rank, 0), repeats, strict=True):
        if count == 1:
            continue
        if x.shape[axis] == 1:
            x = expand(x, axis=axis, size=count)
        else:
            x = merge(expand(unsqueeze(x, axes=(axis - 1,)), axis=axis - 1, size=count), axis=axis)
    return x


def repeat(x: Value, count: Size, *, axis: int) -> Value:
    """Repeat each element of an axis n times in a row."""
    axis = axis_from_end(axis, x.rank)
    if count == 1:
        return x
    if x.shape[axis] == 1:
        return expand(x, axis=axis, size=count)
    return merge(expand(unsqueeze(x, axes=(axis,)), axis=axis, size=count), axis=axis)


def pad_dims(x: Value, before: Sequence[Size], after: Sequence[Size], value: Operand = 0) -> Value:
    """Pad every axis with one number; a negative amount cuts off."""
    if len(before) != x.rank or len(after) != x.rank:
        raise TypeRuleError(f"padding for {len(before)} axes of rank {x.rank}", hint="give one amount for each axis")
    for axis, front, back in zip(range(-x.rank, 0), before, after, strict=True):
        crop_front = -front if isinstance(front, int) and front < 0 else 0
        crop_back = -back if isinstance(back, int) and back < 0 else 0
        if crop_front or crop_back:
            x = cut(x, axis, crop_front, x.shape[axis] - crop_back)
        front, back = (0 if crop_front else front), (0 if crop_back else back)
        if front != 0 or back != 0:
            x = pad(x, value, axis=axis, before=front, after=back)
    return x


def full(shape: Sequence[Size], number: complex, dtype: DType) -> Value:
    """Return one number everywhere."""
    return broadcast_to(leaf.scalar(number, dtype), shape)


def zeros(shape: Sequence[Size], dtype: DType) -> Value:
    return full(shape, 0, dtype)


def full_like(x: Value, number: complex) -> Value:
    """Return one number in the shape and dtype of another tensor."""
    return full(x.shape, number, x.dtype)


def arange(start: Size, stop: Size, step: int = 1, *, dtype: DType = i64) -> Value:
    """start, start + step, … up to before stop."""
    if step == 0:
        raise TypeRuleError("a range with step 0", hint="use another step")
    apart = stop - start if step > 0 else start - stop
    count = (apart + abs(step) - 1) // abs(step)
    numbers = iota(size=max(count, 0) if isinstance(count, int) else count, dtype=dtype)
    if step != 1:
        numbers = numbers * step
    if isinstance(start, Dim):
        return numbers + extent(size=start, dtype=dtype)
    return numbers + start if start else numbers


def trilu(x: Value, *, upper: bool, offset: int = 0) -> Value:
    """Return the matrix on and below a diagonal, or on and above it, and 0 elsewhere."""
    if x.rank < 2:
        raise TypeRuleError(f"a triangle of {x.type}", hint="it takes matrices")
    rows, columns = x.shape[-2:]
    if upper:
        row = unsqueeze(iota(size=rows), axes=(-1,))
        return where(less_equal(row + offset, iota(size=columns)), x, 0)
    return where(lower_triangle(rows=rows, columns=columns, offset=offset), x, 0)


__all__ = [
    "arange",
    "broadcast_to",
    "cut",
    "expand_dims",
    "flatten",
    "full",
    "full_like",
    "move_axis",
    "pad_dims",
    "repeat",
    "reshape",
    "select",
    "slice_axis",
    "split_axis",
    "squeeze_dims",
    "stack",
    "swap",
    "tile",
    "transpose",
    "trilu",
    "zeros",
]

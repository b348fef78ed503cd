"""Slices as ONNX and Python count: bounds outside the axis are clamped, negative ones count from its end."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.site import Site
from dovetail.ir.dim import Compound, Dim, Size, largest, smallest
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end

FAR = 2**31 - 1
"""Bounds from here on mean the end of an axis, as exporters write them."""


def sliced(x: Value, axis: int, start: Size, end: Size, step: int) -> Value:
    """x[start:end:step] along an axis."""
    axis = axis_from_end(axis, x.rank)
    whole = x.shape[axis]
    one = step > 0 and isinstance(start, int) and end == start + 1 and end != 0
    if isinstance(start, Dim) and _turns_at_zero(start):
        x = _at_least_one(x, axis, -start)
    if isinstance(end, Dim) and _turns_at_zero(end):
        x = _at_least_one(x, axis, -end)
    if whole == 1 and step > 0 and _keeps_one(start, end):
        x = _at_least_one(x, axis, end) if isinstance(end, Dim) else x
        return ops.sized(ops.sized(x, axis=axis, size=start + 1), axis=axis, size=1) if isinstance(start, Dim) else x
    if step > 0:
        return _cut(x, axis, _place(start, whole, 0, whole, one), _place(end, whole, 0, whole, one), step)
    # Going down from `start` to above `end` is going up in the reversed axis.
    first, last = _place(start, whole, 0, whole - 1, one), _place(end, whole, -1, whole - 1, one)
    if whole == 0:
        return x
    return _cut(ops.flip(x, axes=(axis,)), axis, whole - 1 - first, whole - 1 - last, -step)


def _cut(x: Value, axis: int, first: Size, last: Size, step: int) -> Value:
    """Elements from first to before last. Where sizes tell that one may exceed the other, there are none then."""
    apart = last - first
    if last == 0 or first == x.shape[axis] or (isinstance(apart, int) and apart <= 0):
        return build.cut(x, axis, 0, 0)
    if first != 0 and (_has_extremes(first) or _has_extremes(last)):
        last = largest(first, last)
    return build.cut(x, axis, first, last, step)


def _has_extremes(size: Size) -> bool:
    return isinstance(size, Dim) and any(isinstance(atom, Compound) for monomial, _ in size.terms for atom in monomial)


def _place(bound: Size, whole: Size, lowest: int, highest: Size, one: bool) -> Size:
    """A bound counted from the front. Where it may be outside, the size says so; at -1, 0 and 1 it is checked."""
    if isinstance(bound, int) and isinstance(whole, int):
        counted = bound + whole if bound < 0 else bound
        return largest(lowest, smallest(counted, highest))
    if isinstance(bound, int):
        if abs(bound) >= FAR:
            return highest if bound > 0 else lowest
        if bound < 0:
            return whole + bound if one or bound == -1 else largest(whole + bound, lowest)
        return bound if one or bound <= 1 else smallest(bound, highest)
    counted = whole + bound if _is_negative(bound) else bound
    return smallest(counted, highest) if isinstance(counted - highest, int) else counted


def _is_negative(bound: Dim) -> bool:
    return all(c < 0 for _, c in bound.terms)


def _turns_at_zero(bound: Dim) -> bool:
    """-n counts from the end for every n but 0."""
    return _is_negative(bound) and all(monomial for monomial, _ in bound.terms)


def _keeps_one(start: Size, end: Size) -> bool:
    """Whether symbolic bounds leave an axis of size 1 as it is, or take all from it; the first is checked."""
    if not isinstance(start, Dim) and not isinstance(end, Dim):
        return False
    first = not _is_negative(start) if isinstance(start, Dim) else start == 0
    last = not _is_negative(end) if isinstance(end, Dim) else end >= 1
    return first and last


def _at_least_one(x: Value, axis: int, size: Size) -> Value:
    """x, for which it is checked that a size is not 0."""
    whole = x.shape[axis]
    return ops.sized(ops.sized(x, axis=axis, size=whole + largest(size, 1) - size), axis=axis, size=whole)


def slice_in_run(n: Site, x: Value, axis: int, start: Value, end: Value, step: int) -> Value:
    """x[start:end:step] along an axis, for bounds that the run computes."""
    whole = size_value(x.shape[axis])
    first = ops.where(ops.less(start, 0), start + whole, start)
    last = ops.where(ops.less(end, 0), end + whole, end)
    if step > 0:
        first = ops.minimum(ops.maximum(first, 0), whole)
        apart = ops.minimum(last, whole) - first
    else:
        first = ops.minimum(ops.maximum(first, 0), whole - 1)
        apart = first - ops.maximum(last, -1)
    count = ops.div(ops.maximum(apart + (abs(step) - 1), 0), abs(step))
    return ops.gather(x, n.counted(count, "slice") * step + first, axis=axis)

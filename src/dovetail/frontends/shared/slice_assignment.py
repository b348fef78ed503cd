"""Assignments to slices whose bounds the run computes: `x[start : end] = v`, as exporters write them.

They scatter a broadcast value at a range. The number of indices is a size that the run finds; a select does without it,
so that a loop with such an assignment in its body runs as compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.site import Site
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import build, generate

_FREE = frozenset({leaf.CONST, ops.iota, ops.extent})
"""Values without operands that have one meaning in every body."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Indices start, start + 1, … of which the run computes how many there are."""

    start: Value
    count: Value


def slice_assignment(n: Site, x: Value, indices: Value, updates: Value, axis: int) -> Value | None:
    """x with one slice of updates at each index of a range along an axis; None for other indices and updates."""
    others = [a for a in range(-x.rank, 0) if a != axis]
    if indices.rank != x.rank or updates.rank != x.rank or updates.dtype is not x.dtype:
        return None
    if any(v.shape[a] != x.shape[a] for v in (indices, updates) for a in others):
        return None
    written, update = _range_along(n, indices, axis), _one_along(updates, axis)
    if written is None or update is None:
        return None
    given = _count(n, updates.shape[axis], (x, indices, updates))
    if given is None:
        return None
    whole = size_value(x.shape[axis])
    start = _checked(written, given, whole)
    place = build.expand_dims(ops.iota(size=x.shape[axis]) - start, range(1, -axis))
    # A negative index counts from the end.
    hit = ops.bit_or(_within(place, written.count), _within(place - whole, written.count))
    return ops.where(hit, update, x)


def _within(place: Value, count: Value) -> Value:
    return ops.bit_and(ops.greater_equal(place, 0), ops.less(place, count))


def _checked(written: _Range, given: Value, whole: Value) -> Value:
    """The start; an error in the run where an index is outside the axis, or their number is not that of the updates."""
    start, count = written.start, written.count
    inside = ops.bit_and(ops.greater_equal(start, -whole), ops.less_equal(start + count, whole))
    fits = ops.bit_and(ops.equal(count, given), ops.bit_or(ops.equal(count, 0), inside))
    # Reading beyond the one element is the error.
    return ops.gather(build.reshape(start, (1,)), ops.where(fits, leaf.scalar(0, i64), 1), axis=0)


def _range_along(n: Site, indices: Value, axis: int) -> _Range | None:
    """The range that indices repeat along all other axes."""
    place = axis
    while indices.op in (ops.expand, ops.unsqueeze, ops.squeeze):
        below = indices.operands[0]
        if indices.op is ops.expand:
            if indices.attrs["axis"] == place:
                return None
        elif indices.op is ops.unsqueeze:
            kept = [a for a in range(-indices.rank, 0) if a not in indices.attrs["axes"]]
            if place not in kept:
                return None
            place = kept.index(place) - below.rank
        else:
            kept = [a for a in range(-below.rank, 0) if a not in indices.attrs["axes"]]
            place = kept[place + indices.rank]
        indices = below
    return _range(n, indices) if indices.rank == 1 else None


def _range(n: Site, indices: Value) -> _Range | None:
    """The start and the count of start + counting * 1."""
    if indices.op is not ops.add or not indices.dtype.is_integer:
        return None
    start, steps = indices.operands
    if start.rank or steps.op is not ops.mul or n.sizes(steps.operands[1]) != (1,):
        return None
    counting = steps.operands[0]
    counting = counting.operands[0] if counting.op is ops.cast else counting
    return _Range(_as_i64(start), _as_i64(counting.operands[0])) if counting.op is generate.counting else None


def _one_along(updates: Value, axis: int) -> Value | None:
    """The slice that updates repeat along an axis."""
    above: list[Value] = []
    while updates.op is ops.expand:
        below = updates.operands[0]
        if updates.attrs["axis"] == axis:
            for view in reversed(above):
                below = view.with_operands((below,))
            return below
        above.append(updates)
        updates = below
    return None


def _count(n: Site, size: Size, read: Sequence[Value]) -> Value | None:
    """The number that a size is, computed from leaves that are read here anyway; None where it is not known."""
    found = n.follower.count_of(size) if isinstance(size, Dim) else leaf.scalar(size, i64)
    if found is None:
        return None
    here = {v for v in walk(read) if not v.operands}
    return _as_i64(found) if all(v in here or v.op in _FREE for v in walk([found]) if not v.operands) else None


def _as_i64(value: Value) -> Value:
    return value if value.dtype is i64 else ops.cast(value, dtype=i64)

"""Gathers and scatters whose indices are iotas along axes are views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops.reshaping import reshape
from dovetail.passes.canonical.rule import listed, number_in, rule

_LARGEST_LOOKED_AT = 1 << 20
"""Elements of a constant that is read to see whether it counts along an axis."""
_LONGEST = 8
"""Most views that are searched."""


@rule(ops.gather_nd)
def gather_by_counting(value: Value) -> Value | None:
    """Places that count along axes name every element once for each place: the tensor itself, seen another way."""
    x, indices = value.operands
    if value.known_type is None or value.attrs["batch"] != 0:
        return None
    columns = _columns(indices)
    axes = [None if c is None else _counted(c, x.shape[i]) for i, c in enumerate(columns)]
    return _spread(x, axes, indices.shape[:-1])


@rule(ops.gather)
def gather_from_joined(value: Value) -> Value | None:
    """Two axes that are joined and read at outer · length + inner, both counting, were never joined."""
    x, index = value.operands
    if value.known_type is None or value.attrs["axis"] != -x.rank:
        return None
    apart = _apart(x)
    places = None if apart is None else _outer_and_inner(index, apart.shape[1])
    if apart is None or places is None:
        return None
    outer, inner = places
    axes = [_counted_of(outer, index.rank, apart.shape[0]), _counted_of(inner, index.rank, apart.shape[1])]
    return _spread(apart, axes, index.shape)


@rule(ops.gather)
def gather_in_order(value: Value) -> Value | None:
    """Reading at every place in order gives the tensor itself, seen another way."""
    x, index = value.operands
    axis: int = value.attrs["axis"]
    if value.known_type is None:
        return None
    if index.op is not leaf.CONST:
        counted = _counted_of(index, index.rank, x.shape[axis]) if axis == -x.rank else None
        return None if counted is None else _spread(x, [counted], index.shape)
    if index.tensor.count != x.shape[axis]:
        return None
    array: Array = index.attrs["value"].array
    if not 1 < array.size <= _LARGEST_LOOKED_AT or not np.array_equal(array.reshape(-1), np.arange(array.size)):
        return None
    return reshape(x, value.shape)


@rule(ops.scatter_nd)
def scatter_over_all(value: Value) -> Value | None:
    """Updates for every place in order are the result."""
    x, indices, updates = value.operands
    if value.known_type is None or value.attrs["reduction"] != "none" or updates.known_type != x.known_type:
        return None
    columns = _columns(indices)
    # Along an axis of size 1 there is one place only.
    in_order = [c is not None and (x.shape[i] == 1 or _counted(c, x.shape[i]) == i) for i, c in enumerate(columns)]
    return updates if all(in_order) and indices.rank - 1 == len(columns) else None


@rule(ops.greater_equal, ops.less_equal)
def counting_starts_at_zero(value: Value) -> Value | None:
    """What counts from 0 is never below it."""
    left, right = value.operands
    above, bound = (left, right) if value.op is ops.greater_equal else (right, left)
    least = number_in(bound)
    if value.known_type is None or least is None or least > 0 or above.shape != value.shape:
        return None
    return _all_true(value.shape) if _under_views(above).op is ops.iota else None


@rule(ops.less, ops.less_equal)
def counting_goes_by_one(value: Value) -> Value | None:
    """x < y + 1 is x <= y, and x + 1 <= y is x < y, where the side with the 1 counts from 0."""
    left, right = value.operands
    if value.known_type is None:
        return None
    if value.op is ops.less:
        below = _one_below(right)
        return None if below is None else ops.less_equal(left, below)
    below = _one_below(left)
    return None if below is None else ops.less(below, right)


def _one_below(value: Value) -> Value | None:
    """y where a value is y + 1, seen through views, and y counts from 0."""
    above: list[Value] = []
    while value.op in (ops.unsqueeze, ops.expand) and len(above) < _LONGEST:
        above.append(value)
        (value,) = value.operands
    if value.op is not ops.add or number_in(value.operands[1]) != 1 or value.operands[0].op is not ops.iota:
        return None
    result = value.operands[0]
    for view in reversed(above):
        result = view.with_operands((result,))
    return result


@rule(ops.matmul, numerics="reassociated", on_constant=True)
def product_of_depth_one(value: Value) -> Value | None:
    """A column times a row is every product of both; one of them is a constant, as in angles of positions."""
    left, right = value.operands
    known = left.known_type is not None and right.known_type is not None
    return ops.mul(left, right) if known and left.rank > 1 and right.rank > 1 and left.shape[-1] == 1 else None


def _all_true(shape: tuple[Size, ...]) -> Value:
    result = ops.unsqueeze(leaf.constant(np.array(True)), axes=tuple(range(-len(shape), 0)))
    for axis, size in zip(range(-len(shape), 0), shape, strict=True):
        result = result if size == 1 else ops.expand(result, axis=axis, size=size)
    return result


def _under_views(value: Value) -> Value:
    for _ in range(_LONGEST):
        if value.op not in (ops.unsqueeze, ops.expand):
            break
        (value,) = value.operands
    return value


def _columns(indices: Value) -> list[Value | Array | None]:
    """The numbers along each axis that is read, all of them with the axes of the places; None for what is not known."""
    if indices.op is ops.concat and indices.attrs["axis"] == -1 and all(v.shape[-1] == 1 for v in indices.operands):
        return list(indices.operands)
    if indices.op is leaf.CONST:
        array: Array = indices.attrs["value"].array
        return [array[..., i : i + 1] for i in range(array.shape[-1])] if array.size <= _LARGEST_LOOKED_AT else [None]
    return [indices] if indices.shape[-1] == 1 else [None]


def _counted(column: Value | Array, size: Size) -> int | None:
    """The axis along which numbers [*, 1] count from 0 up to a size, being the same along all others."""
    if isinstance(column, Value):
        return _counted_of(column, column.rank, size)
    for axis, length in enumerate(column.shape[:-1]):
        lines = np.moveaxis(column, axis, -1)
        if (
            length == size
            and length > 1
            and np.array_equal(lines, np.broadcast_to(np.arange(length, dtype=np.int64), lines.shape))
        ):
            return axis
    return None


def _counted_of(value: Value, rank: int, size: Size) -> int | None:
    """The same for a value that stretches to so many axes: iota under views that only add axes and repeat."""
    above: list[Value] = []
    for _ in range(_LONGEST):
        if value.op not in (ops.unsqueeze, ops.expand):
            break
        above.append(value)
        (value,) = value.operands
    if value.op is not ops.iota or value.shape[0] != size:
        return None
    axis = -1
    for view in reversed(above):
        if view.op is ops.unsqueeze:
            fresh = set(view.attrs["axes"])
            axis = [a for a in range(-view.rank, 0) if a not in fresh][axis + view.operands[0].rank] if fresh else axis
    return axis + rank


def _spread(x: Value, axes: Sequence[int | None], grid: tuple[Size, ...]) -> Value | None:
    """x with its first axes at these places of a grid, and repeated along the others."""
    places = [a for a in axes if a is not None]
    if not places or len(places) < len(axes) or len(set(places)) < len(places) or len(axes) > x.rank:
        return None
    order = [*sorted(range(len(places)), key=lambda i: places[i]), *range(len(places), x.rank)]
    result = x if order == list(range(x.rank)) else ops.permute(x, order=tuple(i - x.rank for i in order))
    rest = x.rank - len(places)
    empty = [a - len(grid) - rest for a in range(len(grid)) if a not in places]
    result = ops.unsqueeze(result, axes=tuple(empty)) if empty else result
    for axis in empty:
        size = grid[axis + len(grid) + rest]
        result = result if size == 1 else ops.expand(result, axis=axis, size=size)
    return result


def _apart(x: Value) -> Value | None:
    """The tensor whose first two axes are the first axis of x."""
    tail = 0
    if x.op is ops.unsqueeze and x.attrs["axes"] == tuple(range(-len(x.attrs["axes"]), 0)):
        tail = len(x.attrs["axes"])
        (x,) = x.operands
    if x.op is not ops.merge or x.attrs["count"] != 2 or x.attrs["axis"] != -x.rank:
        return None
    (source,) = x.operands
    return ops.unsqueeze(source, axes=tuple(range(-tail, 0))) if tail else source


def _outer_and_inner(index: Value, length: Size) -> tuple[Value, Value] | None:
    """The two sides of outer · length + inner."""
    if index.op is not ops.add:
        return None
    for scaled, inner in (index.operands, index.operands[::-1]):
        if scaled.op is ops.mul:
            for outer, factor in (scaled.operands, scaled.operands[::-1]):
                if _is_size(factor, length):
                    return outer, inner
    return None


def _is_size(value: Value, size: Size) -> bool:
    if value.op is ops.extent:
        return value.attrs["size"] == size
    return isinstance(size, int) and number_in(value) == size


RULES = listed(globals())

"""What gradient rules of several families share: broadcasts undone, zeros, counts."""

from __future__ import annotations

from collections.abc import Sequence

# Families read each other here when a rule runs, long after all of them are imported.
from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, product
from dovetail.ir.dtype import DType
from dovetail.ir.value import Value


def unbroadcast(g: Value, shape: tuple[Size, ...]) -> Value:
    """Undo a broadcast: sum g over the axes that a tensor of this shape was stretched along."""
    if g.shape == shape:
        return g
    rank = len(shape)
    if rank <= 1 < g.rank and shape in ((), (1,), g.shape[-1:]):
        # One vector for all rows: a view of all rows as one matrix, then one sum, whatever the rank.
        keep = rank == 1 and shape == g.shape[-1:]
        g = flat_rows(g) if keep else ops.merge(g, axis=-1, count=g.rank)
        g = ops.reduce_sum(g, axes=(-2,)) if keep else ops.reduce_sum(g, axes=(-1,))
        return ops.squeeze(g, axes=(-2,)) if keep else g if rank else ops.squeeze(g, axes=(-1,))
    axes = tuple(a for a in range(-g.rank, 0) if a < -rank or (shape[a] == 1 and g.shape[a] != 1))
    if axes:
        g = ops.reduce_sum(g, axes=axes)
    if g.rank > rank:
        g = ops.squeeze(g, axes=tuple(range(-g.rank, -rank)))
    return stated(g, shape)


def sum_over(g: Value, axes: tuple[int, ...]) -> Value:
    """Sums that keep their axes, with size 1."""
    return ops.reduce_sum(g, axes=axes)


def stated(g: Value, shape: tuple[Size, ...]) -> Value:
    """g with the sizes of a shape of its rank, where they are equal by a constraint only."""
    for axis in range(-g.rank, 0):
        if g.shape[axis] != shape[axis]:
            g = ops.sized(g, axis=axis, size=shape[axis])
    return g


def broadcast(g: Value, shape: tuple[Size, ...]) -> Value:
    """g stretched to a shape that it broadcasts to."""
    if g.rank < len(shape):
        g = ops.unsqueeze(g, axes=tuple(range(-len(shape), -g.rank)))
    for axis in range(-len(shape), 0):
        if g.shape[axis] == 1 != shape[axis]:
            g = ops.expand(g, axis=axis, size=shape[axis])
    return stated(g, shape)


def reshaped(x: Value, shape: tuple[Size, ...]) -> Value:
    """Return the same elements in another shape."""
    return x if x.shape == shape else ops.reshape(x, shape)


def zeros(shape: tuple[Size, ...], dtype: DType) -> Value:
    """Return a tensor of zeros."""
    return broadcast(leaf.scalar(0, dtype), shape)


def zeros_like(x: Value) -> Value:
    """Zeros of the type of x."""
    return zeros(x.shape, x.dtype)


def count(sizes: Sequence[Size], dtype: DType) -> Value | float:
    """Return a number of elements: a number, or one that the run computes."""
    n = product(tuple(sizes))
    return ops.extent(size=n, dtype=dtype) if isinstance(n, Dim) else float(n)


def permuted(x: Value, order: tuple[int, ...]) -> Value:
    """Permute all axes, counted from the end."""
    return x if order == tuple(range(-x.rank, 0)) else ops.permute(x, order=order)


def transposed(x: Value) -> Value:
    """Swap the last two axes."""
    return ops.permute(x, order=(-1, -2))


def flat_rows(x: Value) -> Value:
    """Return all rows of all batches as the rows of one matrix."""
    return x if x.rank == 2 else ops.merge(x, axis=-2, count=x.rank - 1)


def counter(size: Size) -> Value:
    """0, 1, 2, … below a size."""
    return ops.iota(size=size)


def added_at(x: Value, indices: Value, updates: Value, axis: int) -> Value:
    """x with each update added at its index along an axis."""
    return ops.scatter_elements(x, indices, updates, axis=axis, reduction="add")


def along(steps: Value, axis: int) -> Value:
    """Return a vector shaped to broadcast along an axis, counted from the end."""
    return ops.unsqueeze(steps, axes=tuple(range(axis + 1, 0))) if axis != -1 else steps


__all__ = [
    "added_at",
    "along",
    "broadcast",
    "count",
    "counter",
    "flat_rows",
    "permuted",
    "reshaped",
    "stated",
    "sum_over",
    "transposed",
    "unbroadcast",
    "zeros",
    "zeros_like",
]

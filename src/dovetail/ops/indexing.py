"""Reading and writing by index. Negative indices count from the end; one out of range is an error, never clamped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from dovetail.errors import BindError, TypeRuleError
from dovetail.ir.dim import Dim, Size, product
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.dtype import FLOATS, INTEGERS, NUMBERS, DType, bool_, i64
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, TupleType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint, elementwise, generate, movement
from dovetail.ops.gradient import NOT_FLOAT, Parts
from dovetail.ops.primitive import Array, Axis, Fresh, family, no_flops, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.special import wide

Combine = Literal["none", "add", "mul", "max", "min"]
"""What happens where something stands already: it is replaced, or combined with."""

_AT: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _indices(facts: Facts, type: Type) -> TensorType:
    of = tensor(type)
    if of.dtype not in INTEGERS:
        raise TypeRuleError(f"{facts.op} by indices of {of.dtype.name}", hint="cast the indices to i64")
    return of


def _one_rank(facts: Facts, x: TensorType, indices: TensorType) -> None:
    if x.rank != indices.rank:
        raise TypeRuleError(
            f"{facts.op}: indices of rank {indices.rank} into a tensor of rank {x.rank}", hint="give both one rank"
        )


def checked(indices: Array, size: int, op: str) -> Array:
    """Return the indices, all of them within the axis; NumPy counts negative ones from the end as we do."""
    bad = (indices < -size) | (indices >= size)
    if np.any(bad):
        hint = f"indices go from {-size} to {size - 1}" if size else "an empty axis has no element to take"
        raise BindError(f"{op}: index {indices[bad].flat[0]} into an axis of size {size}", hint=hint)
    return indices.astype(np.int64)


def counted(actual: int, count: int | Dim, op: str) -> None:
    """Check that the number of results is the one that the type promises, where it promises one."""
    if isinstance(count, int) and actual != count:
        raise BindError(
            f"{op} found {actual} where {count} were promised", hint="bind the count to what the input holds"
        )


def _gather(facts: Facts, x: Type, indices: Type, *, axis: int) -> Type:
    of, by = tensor(x), _indices(facts, indices)
    at = axis + of.rank
    return TensorType(of.dtype, (*of.shape[:at], *by.shape, *of.shape[at + 1 :]))


def _gather_pull(g: Value, y: Value, x: Value, indices: Value, *, axis: int) -> Parts:
    """Add each slice to the one that it was read from."""
    at, count = axis + x.rank, indices.rank
    front = (*range(at, at + count), *range(at), *range(at + count, y.rank))
    rows = adjoint.permuted(g, tuple(a - y.rank for a in front))
    shape = (x.shape[at], *x.shape[:at], *x.shape[at + 1 :])
    into = adjoint.zeros(shape, x.dtype)
    lost = scatter_nd(into, movement.unsqueeze(indices, axes=(-1,)), rows, reduction="add")
    back = (*range(1, at + 1), 0, *range(at + 1, x.rank))
    return adjoint.permuted(lost, tuple(a - x.rank for a in back)), None


@primitive(_gather, flops=no_flops, pull=_gather_pull)
def gather(x: Array, indices: Array, *, axis: Axis) -> Array:
    """Slices of x along an axis, one for each index; the shape of the indices takes the place of the axis."""
    return np.take(x, checked(indices, x.shape[axis], "gather"), axis=axis)


def _gather_elements(facts: Facts, x: Type, indices: Type, *, axis: int) -> Type:
    of, by = tensor(x), _indices(facts, indices)
    _one_rank(facts, of, by)
    _covers(facts, of, by, axis)
    return TensorType(of.dtype, by.shape)


def _covers(facts: Facts, x: TensorType, indices: TensorType, axis: int) -> None:
    for i in range(-x.rank, 0):
        if i != axis:
            facts.at_least(x.shape[i], indices.shape[i], "the tensor beside the axis, against the indices")


def _along(indices: Array, size: int, axis: int, op: str) -> tuple[Array, ...]:
    """Return one index a dimension: the operand's along the axis, the element's own place elsewhere."""
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = checked(indices, size, op)
    return tuple(places)


def _gather_elements_pull(g: Value, y: Value, x: Value, indices: Value, *, axis: int) -> Parts:
    beside = [i for i in range(-x.rank, 0) if i != axis]
    if indices.shape[axis] != 1 or any(indices.shape[i] != x.shape[i] for i in beside):
        return adjoint.added_at(adjoint.zeros_like(x), indices, g, axis), None
    # One element of each row, as a loss takes it: elementwise, so that no kernel writes a tensor of zeros first.
    size = x.shape[axis]
    wide = indices if indices.dtype is i64 else elementwise.cast(indices, dtype=i64)
    counted = elementwise.where(wide < 0, wide + (generate.extent(size=size) if isinstance(size, Dim) else size), wide)
    return elementwise.where(elementwise.equal(adjoint.along(adjoint.counter(size), axis), counted), g, 0.0), None


@primitive(_gather_elements, flops=no_flops, pull=_gather_elements_pull)
def gather_elements(x: Array, indices: Array, *, axis: Axis) -> Array:
    """For each index the element of x at its place, but along the axis at the index."""
    return x[_along(indices, x.shape[axis], axis, "gather_elements")]


def _depth(facts: Facts, x: TensorType, indices: TensorType, batch: int) -> int:
    """Return how many axes of x one row of indices names."""
    depth = indices.shape[-1] if indices.rank else None
    if not isinstance(depth, int):
        raise TypeRuleError(f"{facts.op} by indices of {indices}", hint="the last axis of the indices has a known size")
    if not (0 <= batch < indices.rank and 1 <= depth <= x.rank - batch):
        raise TypeRuleError(
            f"{facts.op}: rows of {depth} indices after {batch} batch axes, into rank {x.rank}",
            hint="a row names one axis or more, and no more than stand behind the batch axes",
        )
    return depth


def _gather_nd(facts: Facts, x: Type, indices: Type, *, batch: int) -> Type:
    of, by = tensor(x), _indices(facts, indices)
    depth = _depth(facts, of, by, batch)
    shared = [facts.equal(of.shape[i], by.shape[i], "the batch sizes") for i in range(batch)]
    return TensorType(of.dtype, (*shared, *by.shape[batch:-1], *of.shape[batch + depth :]))


def _rows(x: Array, indices: Array, batch: int, op: str) -> tuple[Array, ...]:
    """Return one index a dimension for rows of indices; batch axes keep their own place."""
    places = list(np.indices(indices.shape[:-1], sparse=True))[:batch]
    named = [checked(indices[..., d], x.shape[batch + d], op) for d in range(indices.shape[-1])]
    return (*places, *named)


def _gather_nd_pull(g: Value, y: Value, x: Value, indices: Value, *, batch: int) -> Parts:
    rows = [movement.unsqueeze(place, axes=(-1,)) for place in _batch_places(indices, batch)]
    named = movement.concat(*rows, indices, axis=-1) if rows else indices
    return scatter_nd(adjoint.zeros_like(x), named, g, reduction="add"), None


def _batch_places(indices: Value, batch: int) -> list[Value]:
    """Return for each batch axis the place of every row of indices along it."""
    shape = indices.shape[:-1]
    counters = [elementwise.cast(generate.iota(size=shape[i]), dtype=indices.dtype) for i in range(batch)]
    return [adjoint.broadcast(adjoint.along(c, i - len(shape)), shape) for i, c in enumerate(counters)]


@primitive(_gather_nd, flops=no_flops, pull=_gather_nd_pull)
def gather_nd(x: Array, indices: Array, *, batch: int = 0) -> Array:
    """The part of x that each row of indices names; the first `batch` axes go along with the indices."""
    return x[_rows(x, indices, batch, "gather_nd")]


def _combined(facts: Facts, x: TensorType, updates: TensorType, reduction: str) -> DType:
    allowed = {"none": EVERY, "add": NUMBERS, "mul": NUMBERS}.get(reduction, (*INTEGERS, *FLOATS))
    return one_dtype(facts, [x, updates], allowed)


def _one_per_update(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return 0 if attrs["reduction"] == "none" else tensor(operands[2]).count


def _written(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        result = x.copy()
        result[places] = updates
        return result
    total = x.astype(wide(x.dtype))
    _AT[reduction].at(total, places, updates.astype(total.dtype))
    return total.astype(x.dtype)


def _scatter_elements(facts: Facts, x: Type, indices: Type, updates: Type, *, axis: int, reduction: str) -> Type:
    of, by, new = tensor(x), _indices(facts, indices), tensor(updates)
    dtype = _combined(facts, of, new, reduction)
    _one_rank(facts, of, by)
    _one_rank(facts, of, new)
    for i in range(of.rank):
        facts.equal(by.shape[i], new.shape[i], "the indices, against the updates")
    _covers(facts, of, by, axis)
    return TensorType(dtype, of.shape)


def _scatter_elements_pull(
    g: Value, y: Value, x: Value, indices: Value, updates: Value, *, axis: int, reduction: Combine
) -> Parts:
    count = generate.iota(size=updates.tensor.count)

    def write(onto: Value, new: Value, how: Combine) -> Value:
        return scatter_elements(onto, indices, new, axis=axis, reduction=how)

    def read(of: Value) -> Value:
        return gather_elements(of, indices, axis=axis)

    numbered = adjoint.reshaped(count, updates.shape)
    return _scatter_parts(g, y, x, updates, reduction, write, read, numbered)


@primitive(_scatter_elements, flops=_one_per_update, pull=_scatter_elements_pull)
def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: Axis, reduction: Combine = "none") -> Array:
    """x with each update put at its place, but along the axis at its index; of equal places the last one stays."""
    return _written(x, _along(indices, x.shape[axis], axis, "scatter_elements"), updates, reduction)


def _scatter_nd(facts: Facts, x: Type, indices: Type, updates: Type, *, reduction: str) -> Type:
    of, by, new = tensor(x), _indices(facts, indices), tensor(updates)
    dtype = _combined(facts, of, new, reduction)
    depth = _depth(facts, of, by, 0)
    expected = (*by.shape[:-1], *of.shape[depth:])
    if len(expected) != new.rank:
        raise TypeRuleError(
            f"{facts.op}: updates of rank {new.rank}", hint=f"rank {len(expected)} fits these indices: {expected}"
        )
    for actual, size in zip(new.shape, expected, strict=True):
        facts.equal(actual, size, "the updates, against what the indices name")
    return TensorType(dtype, of.shape)


def _scatter_nd_pull(g: Value, y: Value, x: Value, indices: Value, updates: Value, *, reduction: Combine) -> Parts:
    def write(onto: Value, new: Value, how: Combine) -> Value:
        return scatter_nd(onto, indices, new, reduction=how)

    def read(of: Value) -> Value:
        return gather_nd(of, indices)

    rows = product(indices.shape[:-1])
    numbers = adjoint.reshaped(generate.iota(size=rows), indices.shape[:-1])
    whole = updates.rank - numbers.rank
    numbered = movement.unsqueeze(numbers, axes=tuple(range(-whole, 0))) if whole else numbers
    return _scatter_parts(g, y, x, updates, reduction, write, read, adjoint.broadcast(numbered, updates.shape))


def _scatter_parts(
    g: Value,
    y: Value,
    x: Value,
    updates: Value,
    reduction: Combine,
    write: Callable[[Value, Value, Combine], Value],
    read: Callable[[Value], Value],
    numbered: Value,
) -> Parts:
    """Return the gradients of x and of the updates. `numbered` counts the updates, in the order in which they are
    written.
    """
    if reduction == "add":
        return g, None, read(g)
    if reduction == "none":
        # An update that a later one replaced is not part of the result.
        last = write(adjoint.zeros(x.shape, i64), numbered, "none")
        kept = elementwise.where(elementwise.equal(read(last), numbered), read(g), 0.0)
        return write(g, adjoint.zeros_like(updates), "none"), None, kept
    if reduction == "mul":
        return _scattered_product(g, x, updates, write, read)
    # max, min: what equals the result shares its gradient.
    mine, theirs = elementwise.equal(x, y), elementwise.equal(updates, read(y))
    ties = write(elementwise.cast(mine, dtype=x.dtype), elementwise.cast(theirs, dtype=x.dtype), "add")
    share = g / ties
    return elementwise.where(mine, share, 0.0), None, elementwise.where(theirs, read(share), 0.0)


def _scattered_product(
    g: Value, x: Value, updates: Value, write: Callable[[Value, Value, Combine], Value], read: Callable[[Value], Value]
) -> Parts:
    """Return the product of all others: of factors that are 0, one has a slope and two have none."""
    zero_x, zero_u = elementwise.equal(x, 0.0), elementwise.equal(updates, 0.0)
    zeros = write(elementwise.cast(zero_x, dtype=x.dtype), elementwise.cast(zero_u, dtype=x.dtype), "add")
    ones_x, ones_u = elementwise.where(zero_x, 1.0, x), elementwise.where(zero_u, 1.0, updates)
    slope = g * write(ones_x, ones_u, "mul")
    gradients: list[Value] = []
    for zero, others, here, met in ((zero_x, ones_x, slope, zeros), (zero_u, ones_u, read(slope), read(zeros))):
        alone = elementwise.where(zero, elementwise.equal(met, 1.0), elementwise.equal(met, 0.0))
        gradients.append(elementwise.where(alone, here / others, 0.0))
    return gradients[0], None, gradients[1]


@primitive(_scatter_nd, flops=_one_per_update, pull=_scatter_nd_pull)
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: Combine = "none") -> Array:
    """x with each update put where its row of indices names; of equal rows the last one stays."""
    return _written(x, _rows(x, indices, 0, "scatter_nd"), updates, reduction)


def _one_per_input(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(operands[0]).count


def _nonzero(facts: Facts, x: Type, *, count: Size) -> Type:
    of = tensor(x)
    one_dtype(facts, [of], (*NUMBERS, bool_))
    return TensorType(i64, (of.rank, count))


@primitive(_nonzero, flops=_one_per_input, pull=NOT_FLOAT)
def nonzero(x: Array, *, count: Fresh) -> Array:
    """The places of all elements that are not 0, in the order of memory: one row an axis, one column an element."""
    places = np.argwhere(x).T
    counted(places.shape[1], count, "nonzero")
    return places.astype(np.int64)


def _unique(facts: Facts, x: Type, *, axis: int | None, in_order: bool, count: Size) -> Type:
    of = tensor(x)
    one_dtype(facts, [of], (*INTEGERS, *FLOATS, bool_))
    many = TensorType(i64, (count,))
    if axis is None:
        return TupleType((TensorType(of.dtype, (count,)), many, TensorType(i64, (of.count,)), many))
    at = axis + of.rank
    values = TensorType(of.dtype, (*of.shape[:at], count, *of.shape[at + 1 :]))
    return TupleType((values, many, TensorType(i64, (of.shape[at],)), many))


def _unique_pull(
    g: tuple[Value | None, ...], y: Value, x: Value, *, axis: int | None, in_order: bool, count: Size
) -> Parts:
    """Scatter the slices' gradients to their first indices."""
    if g[0] is None:
        return (None,)
    along = adjoint.reshaped(x, (x.tensor.count,)) if axis is None else x
    (lost, _) = _gather_pull(g[0], y[0], along, y[1], axis=-1 if axis is None else axis)
    assert lost is not None
    return (adjoint.reshaped(lost, x.shape),)


@primitive(_unique, flops=_one_per_input, pull=_unique_pull)
def unique(x: Array, *, axis: Axis | None = None, in_order: bool = True, count: Fresh) -> tuple[Array, ...]:
    """Different slices along an axis (elements without one): slices, first indices, index for each, how many.

    They come in rising order, or as they are met unless `in_order`. NaN differs from itself.
    """
    along = x.reshape(-1) if axis is None else np.moveaxis(x, axis, 0)
    slices = along.reshape(len(along), math.prod(along.shape[1:]))
    first, inverse, counts = _groups(slices)
    if not in_order:
        met = np.argsort(first)
        first, counts = first[met], counts[met]
        inverse = np.argsort(met)[inverse]
    counted(len(first), count, "unique")
    values = x.reshape(-1)[first] if axis is None else np.take(x, first, axis)
    return values, first, inverse, counts


def _groups(rows: Array) -> tuple[Array, Array, Array]:
    """Return for rows in rising order without repetition: first index, the group of every row, and sizes."""
    keys = rows.astype(np.float32) if rows.dtype.kind == "V" else rows
    order = np.lexsort(keys.T[::-1]) if keys.size else np.arange(len(keys))
    ranked = keys[order]
    starts = np.ones(len(keys), np.bool_)
    starts[1:] = np.any(ranked[1:] != ranked[:-1], axis=1)
    inverse = np.empty(len(keys), np.int64)
    inverse[order] = np.cumsum(starts) - 1
    return order[starts], inverse, np.bincount(inverse, minlength=int(starts.sum()))


def compress(x: Value, mask: Value, *, axis: int, count: Size) -> Value:
    """Slices of x along an axis where the mask, a vector, holds; `count` is how many."""
    return gather(x, movement.squeeze(nonzero(mask, count=count), axes=(-2,)), axis=axis)


def one_hot(indices: Value, *, depth: Size, axis: int = -1, dtype: DType = bool_) -> Value:
    """1 at each index along a new axis of `depth`, 0 elsewhere; an index out of range has no 1."""
    place = elementwise.cast(indices, dtype=i64)
    turn = depth if isinstance(depth, int) else generate.extent(size=depth)
    placed = elementwise.where(elementwise.less(place, 0), place + turn, place)
    steps = movement.unsqueeze(generate.iota(size=depth, dtype=i64), axes=tuple(range(axis + 1, 0)))
    return elementwise.cast(elementwise.equal(movement.unsqueeze(placed, axes=(axis,)), steps), dtype=dtype)


FAMILY = family(globals())


__all__ = [
    "compress", "gather", "gather_elements", "gather_nd", "nonzero", "one_hot", "scatter_elements", "scatter_nd",
    "unique",
]  # fmt: skip

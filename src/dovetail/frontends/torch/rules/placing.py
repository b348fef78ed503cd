"""Reading and writing at places that strides, diagonals, segments or the data itself give."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node, axis_of, with_axis
from dovetail.frontends.torch.importing.rule import rule
from dovetail.frontends.torch.rules.logic import truth
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import bool_, i64
from dovetail.ir.value import Value
from dovetail.ops import build


def _strided(size: Sequence[Size], stride: Sequence[Size], offset: Size | None) -> Value:
    """The places of a strided view in memory without gaps."""
    places: Value = size_value(offset or 0)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        along = ops.iota(size=length) * size_value(step)
        shaped = build.expand_dims(along, range(1, len(size) - axis)) if axis < len(size) - 1 else along
        places = places + shaped
    return build.broadcast_to(places, tuple(size))


@rule("as_strided.default")
def as_strided(
    n: Node, x: Value, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None = None
) -> Value:
    """The elements at strides through the memory of x, which has no gaps."""
    return ops.gather(build.reshape(x, (-1,)), _strided(size, stride, storage_offset), axis=-1)


@rule("as_strided_scatter.default")
def as_strided_scatter(
    n: Node, x: Value, src: Value, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None = None
) -> Value:
    """x with elements at strides through its memory replaced."""
    places = build.reshape(_strided(size, stride, storage_offset), (-1,))
    updates = build.reshape(cast(src, x.dtype), (-1,))
    return build.reshape(ops.scatter_elements(build.reshape(x, (-1,)), places, updates, axis=-1), x.shape)


@rule("diagonal_scatter.default")
def diagonal_scatter(n: Node, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """x with a diagonal of two axes replaced."""
    first, second = axis_of(x, dim1) + x.rank, axis_of(x, dim2) + x.rank
    order = [*(a for a in range(x.rank) if a not in (first, second)), first, second]
    matrix = build.transpose(x, order)
    rows, columns = (ops.iota(size=size) for size in matrix.shape[-2:])
    row, column = build.expand_dims(rows, 1), columns
    on = ops.equal(row + offset, column)
    # A row has one element of the diagonal: its number counts from the first row that has one.
    place = ops.clip(rows - max(-offset, 0), leaf.scalar(0, i64), size_value(src.shape[-1]) - 1)
    if src.tensor.count == 0:
        return x
    spread = build.expand_dims(ops.gather(cast(src, x.dtype), place, axis=-1), -1)
    found = ops.where(on, spread, matrix)
    return build.transpose(found, [order.index(a) for a in range(x.rank)])


@rule("put.default")
def put(n: Node, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """x with elements written, or added, at places in its flat form."""
    if index.tensor.count == 0:
        return x
    flat = build.reshape(x, (-1,))
    places = build.reshape(cast(index, i64), (-1,))
    wrapped = ops.where(ops.less(places, 0), places + size_value(flat.shape[0]), places)
    updates = build.reshape(cast(source, x.dtype), (-1,))
    how = "add" if accumulate else "none"
    return build.reshape(ops.scatter_elements(flat, wrapped, updates, axis=-1, reduction=how), x.shape)


@rule("_unique2.default")
def unique(n: Node, x: Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Made:
    """The different elements in order, the number of each element among them, and how often each is there."""
    found = ops.unique(build.reshape(x, (-1,)), count=n.shape[0])
    return _unique(n, found[0], found[2], found[3], return_inverse, return_counts)


def _unique(n: Node, values: Value, inverse: Value, counts: Value, with_inverse: bool, with_counts: bool) -> Made:
    number = build.reshape(inverse, n.type_of(1).shape) if with_inverse else build.zeros(n.type_of(1).shape, i64)
    return values, number, counts if with_counts else build.zeros(n.type_of(2).shape, i64)


@rule("unique_dim.default")
def unique_dim(
    n: Node, x: Value, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Made:
    """The different slices along an axis in order, the number of each slice among them, and how often each is there."""
    axis = axis_of(x, dim)
    found = ops.unique(x, axis=axis, count=n.shape[axis])
    return _unique(n, found[0], found[2], found[3], return_inverse, return_counts)


@rule("unique_consecutive.default")
def unique_consecutive(
    n: Node, x: Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Made:
    """Slices that differ from the one before, the number of each slice among them, and how long each run is."""
    along = build.reshape(x, (-1,)) if dim is None else x
    axis = -1 if dim is None else axis_of(x, dim)
    length = along.shape[axis]
    if length == 0:
        return tuple(build.zeros(n.type_of(i).shape, n.type_of(i).dtype) for i in range(3))
    changed = ops.not_equal(build.cut(along, axis, 1, length), build.cut(along, axis, 0, length - 1))
    others = tuple(a for a in range(-along.rank, 0) if a != axis)
    if others:
        changed = build.squeeze_dims(ops.reduce_any(changed, axes=others), others)
    starts = ops.concat(build.full((1,), True, bool_), changed, axis=-1)
    places = build.select(ops.nonzero(starts, count=n.shape[axis]), axis=0, index=0)
    ends = ops.concat(build.cut(places, -1, 1, places.shape[0]), build.reshape(size_value(length), (1,)), axis=-1)
    inverse = ops.cum_sum(ops.cast(starts, dtype=i64), axis=-1) - 1
    return _unique(n, ops.gather(along, places, axis=axis), inverse, ends - places, return_inverse, return_counts)


@rule("nonzero_static.default")
def nonzero_static(n: Node, x: Value, *, size: Size, fill_value: int = -1) -> Value:
    """The positions of the first elements that are not 0, one row each; rows that are left are filled."""
    flat = build.reshape(truth(x), (-1,))
    if x.rank == 0 or flat.shape[0] == 0 or size == 0:
        return build.full(n.shape, fill_value, n.dtype)
    before = ops.cum_sum(ops.cast(flat, dtype=i64), axis=-1) - 1
    # What is not wanted goes to a last row, which is cut off.
    row = ops.where(ops.bit_and(flat, ops.less(before, size_value(size))), before, size_value(size))
    made = ops.scatter_elements(build.full((size + 1,), -1, i64), row, ops.iota(size=flat.shape[0]), axis=-1)
    place = build.cut(made, -1, 0, size)
    columns: list[Value] = []
    left = place
    for length in reversed(x.shape):
        columns.append(ops.mod(left, size_value(length)))
        left = ops.floor_div(left, size_value(length))
    rows = build.stack(columns[::-1], axis=-1)
    return ops.where(build.expand_dims(ops.less(place, 0), 1), fill_value, rows)


@rule("repeat_interleave.Tensor")
def repeat_interleave(n: Node, repeats: Value, *, output_size: Size | None = None) -> Value:
    """Each number as often as the tensor says."""
    ends = ops.cum_sum(cast(repeats, i64), axis=-1)
    if repeats.shape[0] == 0:
        return build.zeros(n.shape, n.dtype)
    total = build.select(ends, axis=-1, index=-1)
    count = n.shape[0]
    numbers = ops.counting(total, count=count) if isinstance(count, Dim) else ops.iota(size=count)
    passed = ops.less_equal(ends, build.expand_dims(numbers, 1))
    return cast(build.squeeze_dims(ops.reduce_sum(ops.cast(passed, dtype=i64), axes=(-1,)), -1), n.dtype)


@rule("_embedding_bag_forward_only.default", "_embedding_bag.default")
def embedding_bag(
    n: Node,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Made:
    """The sum, mean or maximum of the rows that each bag of indices names; a bag starts at its offset."""
    bags = n.shape[0]
    if indices.shape[0] == 0:
        return build.zeros(n.shape, n.dtype), None, None, None
    starts = build.cut(cast(offsets, i64), -1, 0, bags)
    passed = ops.less_equal(starts, build.expand_dims(ops.iota(size=indices.shape[0]), 1))
    bag = build.squeeze_dims(ops.reduce_sum(ops.cast(passed, dtype=i64), axes=(-1,)), -1) - 1
    named = cast(indices, i64)
    rows = ops.gather(weight, named, axis=-2)
    if per_sample_weights is not None:
        rows = rows * build.expand_dims(cast(per_sample_weights, rows.dtype), 1)
    counted = build.full(named.shape, True, bool_)
    if padding_idx >= 0:
        counted = ops.not_equal(named, padding_idx)
    hit = ops.bit_and(ops.equal(build.expand_dims(ops.iota(size=bags), 1), bag), counted)
    weights = ops.cast(hit, dtype=weight.dtype)
    if mode == 2:
        least = build.full(n.shape, float("-inf"), weight.dtype)
        kept = ops.where(build.expand_dims(counted, 1), rows, float("-inf"))
        top = ops.scatter_nd(least, build.expand_dims(bag, 1), kept, reduction="max")
        empty = build.expand_dims(ops.bit_not(build.squeeze_dims(ops.reduce_any(hit, axes=(-1,)), -1)), 1)
        return ops.where(empty, 0.0, top), None, None, None
    total = weights @ rows
    if mode == 1:
        total = total / ops.maximum(ops.reduce_sum(weights, axes=(-1,)), 1.0)
    return total, None, None, None


@rule("index_reduce.default")
def index_reduce(
    n: Node, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """x with slices along an axis combined with those of source."""
    along = with_axis(x)
    axis = axis_of(along, dim)
    places = build.reshape(cast(index, i64), (-1,))
    updates = cast(source if source.rank == along.rank else build.reshape(source, (1,) * along.rank), x.dtype)
    if updates.tensor.count == 0:
        return x
    by = build.broadcast_to(build.expand_dims(places, range(1, -axis)) if axis < -1 else places, updates.shape)
    how = {"prod": "mul", "mean": "add", "amax": "max", "amin": "min"}[reduce]

    def written(base: Value, new: Value, reduction: str) -> Value:
        return ops.scatter_elements(base, by, new, axis=axis, reduction=reduction)

    often = written(build.zeros(along.shape, x.dtype), build.full(updates.shape, 1, x.dtype), "add")
    base = along
    if not include_self:
        least, most = (float("-inf"), float("inf")) if x.dtype.is_float else x.dtype.range
        start = n.value({"prod": 1, "mean": 0, "amax": least, "amin": most}[reduce], x.dtype)
        base = ops.where(ops.greater(often, n.value(0, x.dtype)), start, along)
    found = written(base, updates, how)
    if reduce == "mean":
        count = ops.maximum(often + n.value(1, x.dtype) if include_self else often, n.value(1, x.dtype))
        found = found / count if x.dtype.is_float else ops.floor_div(found, count)
    return build.reshape(found, n.shape)

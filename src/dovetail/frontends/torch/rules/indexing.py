"""Reading and writing by index."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.torch.importing.node import Node, axis_of, common_shape, with_axis
from dovetail.frontends.torch.importing.rule import Number, rule
from dovetail.frontends.torch.rules.iotas import as_view
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import bool_, i64, u8
from dovetail.ir.value import Value
from dovetail.ops import build

Indices = Sequence[Value | None]


@rule("embedding.default")
def embedding(n: Node, weight: Value, indices: Value, *_: object) -> Value:
    """Rows of a table, one for each index."""
    return ops.gather(weight, _integers(indices), axis=-weight.rank)


@rule("index_select.default")
def index_select(n: Node, x: Value, dim: int, index: Value) -> Value:
    """Slices along an axis, one for each index."""
    along = with_axis(x)
    found = ops.gather(along, _integers(build.reshape(index, (-1,))), axis=axis_of(along, dim))
    return build.reshape(found, n.shape)


@rule("gather.default")
def gather(n: Node, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """For each index the element at its position, with the position along the axis replaced by the index."""
    along, by = with_axis(x), with_axis(index)
    found = ops.gather_elements(along, _integers(by), axis=axis_of(along, dim))
    return build.reshape(found, n.shape)


def _integers(index: Value) -> Value:
    return index if index.dtype is i64 else ops.cast(index, dtype=i64)


@rule("index.Tensor", "_unsafe_index.Tensor")
def index(n: Node, x: Value, indices: Indices) -> Value:
    """x[indices]: integer tensors broadcast with each other, None keeps an axis, a mask picks what is true."""
    by = _by_integers(n, indices, _chosen(n, indices))
    view = as_view(x, by)
    if view is not None:
        return view
    places = [i for i, v in enumerate(by) if v is not None]
    first, together = places[0], places == list(range(places[0], places[0] + len(places)))
    kept = [i for i in range(x.rank) if i not in places]
    if len(places) == 1:
        return ops.gather(x, _some(by[first]), axis=first - x.rank)
    front = build.transpose(x, [*places, *kept]) if places != list(range(len(places))) else x
    rows = _rows([_some(by[p]) for p in places])
    found = ops.gather_nd(front, rows)
    moved = rows.rank - 1
    if not together or first == 0:
        return found
    order = [*range(moved, moved + first), *range(moved), *range(moved + first, found.rank)]
    return build.transpose(found, order)


def _some(index: Value | None) -> Value:
    assert index is not None
    return index


def _chosen(n: Node, indices: Indices) -> Dim | None:
    """The size that torch has for what one mask picks: it is a symbol of this call alone."""
    given = [i for i, v in enumerate(indices) if v is not None]
    size = n.shape[given[0]] if len(given) == 1 and _is_mask(indices[given[0]]) else None
    return size if isinstance(size, Dim) else None


def _by_integers(n: Node, indices: Indices, count: Dim | None = None) -> list[Value | None]:
    """The indices, masks replaced by the positions of what is true in them; `count` is how many these are."""
    found: list[Value | None] = []
    for one in indices:
        if one is None:
            found.append(None)
        elif one.dtype in (bool_, u8):
            if one.rank == 0:
                raise n.unsupported("a mask of rank 0", hint="use where")
            positions = ops.nonzero(one, count=n.fresh("nonzero") if count is None else count)
            found += [build.select(positions, axis=0, index=axis) for axis in range(one.rank)]
        else:
            found.append(_integers(one))
    return found


def _rows(indices: Sequence[Value]) -> Value:
    """Indices of several axes, broadcast with each other, as rows along a last axis."""
    rank = max(v.rank for v in indices)
    shape: list[Size] = [1] * rank
    for v in indices:
        for axis, size in enumerate(v.shape, rank - v.rank):
            shape[axis] = size if shape[axis] == 1 else shape[axis]
    return build.stack([build.broadcast_to(v, shape) for v in indices], axis=-1)


@rule("index_put.default", "_unsafe_index_put.default")
def index_put(n: Node, x: Value, indices: Indices, values: Value, accumulate: bool = False) -> Value:
    """x with values written, or added, where indices say."""
    values = cast(values, x.dtype)
    if len(indices) == 1 and _is_mask(indices[0]) and not accumulate and values.rank == 0:
        mask = _some(indices[0])
        return ops.where(build.expand_dims(mask, range(mask.rank, x.rank)) if mask.rank < x.rank else mask, values, x)
    by = _by_integers(n, indices)
    places = [i for i, v in enumerate(by) if v is not None]
    kept = [i for i in range(x.rank) if i not in places]
    rows = _rows([_wrapped(_some(by[p]), x.shape[p]) for p in places])
    order = [*places, *kept]
    front = build.transpose(x, order)
    first, together = places[0], places == list(range(places[0], places[0] + len(places)))
    named = rows.shape[:-1]
    rest = tuple(x.shape[k] for k in kept)
    if together and first > 0:
        wanted = (*rest[:first], *named, *rest[first:])
        wide = build.broadcast_to(values, wanted)
        moved = [*range(first, first + len(named)), *range(first), *range(first + len(named), len(wanted))]
        updates = build.transpose(wide, moved)
    else:
        updates = build.broadcast_to(values, (*named, *rest))
    if x.dtype is bool_ and accumulate:
        raise n.unsupported("booleans that are accumulated", hint="use integers")
    found = ops.scatter_nd(front, rows, updates, reduction="add" if accumulate else "none")
    back = [order.index(i) for i in range(x.rank)]
    return build.transpose(found, back)


def _wrapped(index: Value, size: Size) -> Value:
    """Indices counted from the front."""
    return ops.where(ops.less(index, 0), index + size_value(size), index)


def _is_mask(index: Value | None) -> bool:
    return index is not None and index.dtype in (bool_,)


@rule("scatter.src", "scatter.reduce", "scatter_add.default")
def scatter(n: Node, x: Value, dim: int, index: Value, src: Value, *, reduce: str | None = None) -> Value:
    """x with each element of src written, added or multiplied at its position along an axis."""
    how = "add" if n.op_type.startswith("scatter_add") else _REDUCED[reduce or "none"]
    return _scattered(n, x, dim, index, src, how)


@rule("scatter.value", "scatter.value_reduce")
def scatter_number(n: Node, x: Value, dim: int, index: Value, value: Number, *, reduce: str | None = None) -> Value:
    """x with a number written, added or multiplied at positions along an axis."""
    return _scattered(
        n, x, dim, index, build.broadcast_to(n.value(value, x.dtype), index.shape), _REDUCED[reduce or "none"]
    )


_REDUCED = {"none": "none", "add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scattered(n: Node, x: Value, dim: int, index: Value, src: Value, how: str) -> Value:
    along, by, new = with_axis(x), with_axis(index), with_axis(src)
    if by.tensor.count == 0:
        return x
    for axis in range(new.rank):
        if new.shape[axis] != by.shape[axis]:
            new = build.cut(new, axis - new.rank, 0, by.shape[axis])
    found = ops.scatter_elements(along, _integers(by), cast(new, x.dtype), axis=axis_of(along, dim), reduction=how)
    return build.reshape(found, n.shape)


@rule("scatter_reduce.two")
def scatter_reduce(
    n: Node, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """x with the elements of src combined at their positions along an axis."""
    if x.dtype is bool_:
        raise n.unsupported("booleans", hint="use integers")
    if reduce not in ("mean", *_REDUCED):
        raise n.malformed(f"reduce is {reduce!r}")
    base = x
    ones = build.full(index.shape, 1, x.dtype)
    if not include_self:
        touched = _scattered(n, build.zeros(x.shape, x.dtype), dim, index, ones, "add")
        start = _start(n, x, reduce)
        base = ops.where(ops.greater(touched, 0), start, x)
    if reduce != "mean":
        return _scattered(n, base, dim, index, src, _REDUCED[reduce])
    total = _scattered(n, base, dim, index, src, "add")
    first = build.full(x.shape, 1, x.dtype) if include_self else build.zeros(x.shape, x.dtype)
    count = ops.maximum(_scattered(n, first, dim, index, ones, "add"), n.value(1, x.dtype))
    return total / count if x.dtype.is_float else ops.floor_div(total, count)


def _start(n: Node, x: Value, reduce: str) -> Value:
    """What a reduction starts from where the element itself does not count."""
    least, most = (float("-inf"), float("inf")) if x.dtype.is_float else x.dtype.range
    return n.value({"sum": 0, "mean": 0, "prod": 1, "amax": least, "amin": most}[reduce], x.dtype)


@rule("index_copy.default")
def index_copy(n: Node, x: Value, dim: int, index: Value, source: Value) -> Value:
    """x with slices along an axis replaced."""
    return _along(n, x, dim, index, source, "none")


@rule("index_add.default")
def index_add(n: Node, x: Value, dim: int, index: Value, source: Value, *, alpha: Number = 1) -> Value:
    """x with slices along an axis added to."""
    scaled = source if alpha == 1 and not isinstance(alpha, Value) else source * n.value(alpha, source.dtype)
    return _along(n, x, dim, index, scaled, "add")


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(n: Node, x: Value, dim: int, index: Value, value: Number) -> Value:
    """x with slices along an axis filled with a number."""
    along = with_axis(x)
    axis = axis_of(along, dim)
    places = build.reshape(index, (-1,))
    shape = tuple(places.shape[0] if a - along.rank == axis else s for a, s in enumerate(along.shape))
    return _along(n, x, dim, index, build.broadcast_to(n.value(value, x.dtype), shape), "none")


def _along(n: Node, x: Value, dim: int, index: Value, source: Value, how: str) -> Value:
    along = with_axis(x)
    axis = axis_of(along, dim)
    places = _wrapped(_integers(build.reshape(index, (-1,))), along.shape[axis])
    updates = source if source.rank == along.rank else build.reshape(source, (1,) * along.rank)
    shaped = build.expand_dims(places, range(1, -axis)) if axis < -1 else places
    if x.dtype is bool_ and how == "add":
        raise n.unsupported("booleans that are accumulated", hint="use integers")
    by = build.broadcast_to(shaped, updates.shape)
    found = ops.scatter_elements(along, by, cast(updates, x.dtype), axis=axis, reduction=how)
    return build.reshape(found, n.shape)


@rule("nonzero.default")
def nonzero(n: Node, x: Value) -> Value:
    """The positions of all elements that are not 0, one row each."""
    found = build.swap(ops.nonzero(with_axis(x), count=n.shape[0]), 0, 1)
    return found if x.rank else build.cut(found, -1, 0, 0)


@rule("masked_select.default")
def masked_select(n: Node, x: Value, mask: Value) -> Value:
    """The elements where a mask holds."""
    count = n.shape[0]
    shape = common_shape(x.shape, mask.shape)
    flat, held = (build.reshape(build.broadcast_to(v, shape), (-1,)) for v in (x, mask))
    places = build.select(ops.nonzero(held, count=count), axis=0, index=0)
    return ops.gather(flat, places, axis=0)


@rule("masked_scatter.default")
def masked_scatter(n: Node, x: Value, mask: Value, source: Value) -> Value:
    """x with the elements of source, in their order, where a mask holds."""
    held = build.reshape(build.broadcast_to(mask, n.shape), (-1,))
    if source.tensor.count == 0:
        return build.broadcast_to(x, n.shape)
    before = ops.cum_sum(ops.cast(held, dtype=i64), axis=-1, exclusive=True)
    last = size_value(source.tensor.count) - 1
    taken = ops.gather(build.reshape(source, (-1,)), ops.minimum(before, last), axis=-1)
    found = ops.where(held, taken, build.reshape(build.broadcast_to(x, n.shape), (-1,)))
    return build.reshape(found, n.shape)


@rule("bucketize.Tensor")
def bucketize(n: Node, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    """The index of the first boundary that is not below each number, or above it with `right`."""
    return _first_above(n, boundaries, build.expand_dims(x, -1), right)


@rule("searchsorted.Tensor")
def searchsorted(
    n: Node,
    sorted_sequence: Value,
    x: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """The index at which each number goes into a sorted row, before equal elements or after them."""
    if sorter is not None:
        sorted_sequence = ops.gather_elements(sorted_sequence, _integers(sorter), axis=-1)
    rows = build.expand_dims(sorted_sequence, -2) if sorted_sequence.rank > 1 else sorted_sequence
    return _first_above(n, rows, build.expand_dims(x, -1), right or side == "right")


def _first_above(n: Node, boundaries: Value, numbers: Value, after: bool) -> Value:
    # NaN is larger than every boundary: what counts is a boundary that is not at or above the number.
    a, b = n.promoted(boundaries, numbers)
    passed = ops.bit_not(ops.greater(a, b) if after else ops.greater_equal(a, b))
    return cast(build.squeeze_dims(ops.reduce_sum(ops.cast(passed, dtype=i64), axes=(-1,)), -1), n.dtype)


@rule("one_hot.default")
def one_hot(n: Node, x: Value, num_classes: int = -1) -> Value:
    """1 at each index along a new last axis, 0 elsewhere."""
    return ops.one_hot(x, depth=n.shape[-1], dtype=n.dtype)

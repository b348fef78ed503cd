"""Reading and writing by index, and values whose size depends on data."""

from __future__ import annotations

from typing import get_args

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.computed import numbers_in, size_value, sizes_or_run
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.shared.slice_assignment import slice_assignment
from dovetail.ir import leaf
from dovetail.ir.dim import Dim
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.indexing import Combine
from dovetail.ops.primitive import axis_from_end


@rule("Gather")
def gather(n: Node, x: Value, indices: Value, *, axis: int = 0) -> Value:
    """Slices along an axis, one for each index."""
    known = n.known(indices)
    if known is not None and known.size == 1 and isinstance(known.flat[0], int):
        chosen = build.select(x, axis=axis, index=known.flat[0])
        at = axis + x.rank if axis < 0 else axis
        return build.expand_dims(chosen, range(at, at + indices.rank))
    return ops.gather(x, indices, axis=axis)


@rule("GatherElements")
def gather_elements(n: Node, x: Value, indices: Value, *, axis: int = 0) -> Value:
    """For each index the element at its position, with the position along the axis replaced by the index."""
    return ops.gather_elements(x, indices, axis=axis)


@rule("GatherND")
def gather_nd(n: Node, x: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    """The slice that each row of indices selects."""
    return ops.gather_nd(x, indices, batch=batch_dims)


def _reduction(n: Node, reduction: str) -> str:
    if reduction not in get_args(Combine):
        raise n.malformed(f"the reduction {reduction!r}", hint=f"it takes {', '.join(get_args(Combine))}")
    return reduction


@rule("Scatter", "ScatterElements")
def scatter_elements(
    n: Node, x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    """x with each update written at its position, with the position along the axis replaced by its index."""
    at = axis_from_end(axis, x.rank)
    assigned = slice_assignment(n, x, indices, updates, at) if reduction == "none" else None
    if assigned is not None:
        return assigned
    return ops.scatter_elements(x, indices, updates, axis=axis, reduction=_reduction(n, reduction))


@rule("ScatterND")
def scatter_nd(n: Node, x: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    """x with each update written to the slice that its row of indices selects."""
    return ops.scatter_nd(x, indices, updates, reduction=_reduction(n, reduction))


@rule("TensorScatter")
def tensor_scatter(
    n: Node, cache: Value, update: Value, write_indices: Value | None = None, *, axis: int = -2, mode: str = "linear"
) -> Value:
    """A KV cache with new entries along an axis, for each batch from its own position on; circular wraps at the end."""
    if mode not in ("linear", "circular"):
        raise n.malformed(f"the mode {mode!r}", hint="it takes linear or circular")
    at = axis_from_end(axis, cache.rank) + cache.rank
    if at == 0:
        raise n.malformed("the axis of the batch", hint="entries are written along another axis")
    batch = cache.shape[0]
    starts = build.zeros((batch,), i64) if write_indices is None else ops.cast(write_indices, dtype=i64)
    places = build.expand_dims(starts, 1) + ops.iota(size=update.shape[at])
    if mode == "circular":
        places = ops.mod(places, size_value(cache.shape[at]))
    # The cache keeps its layout, so that a donated one is updated in place.
    between = build.expand_dims(places, range(1, at)) if at > 1 else places
    index = build.expand_dims(between, range(at + 1, cache.rank)) if at + 1 < cache.rank else between
    return ops.scatter_elements(cache, build.broadcast_to(index, update.shape), update, axis=at - cache.rank)


@rule("OneHot")
def one_hot(n: Node, indices: Value, depth: Value, values: Value, *, axis: int = -1) -> Value:
    """The second of two values at each index along a new axis, the first elsewhere and for an index out of range."""
    at = axis_from_end(axis, indices.rank + 1)
    found = sizes_or_run(n, depth, "depth")
    steps = ops.iota(size=found[0]) if found is not None else n.counted(numbers_in(n, depth, "depth")[0], "one_hot")
    place = build.expand_dims(ops.cast(indices, dtype=i64), at)
    if n.version >= 11:
        place = ops.where(ops.less(place, 0), place + size_value(steps.shape[0]), place)
    hot = ops.equal(place, build.expand_dims(steps, range(1, -at)))
    off, on = (build.select(values, axis=0, index=i) for i in (0, 1))
    return ops.where(hot, on, off)


@rule("NonZero")
def nonzero(n: Node, x: Value) -> Value:
    """The indices of all non-zero elements: one row per axis, one column per element."""
    return _nonzero(n, x)


def _nonzero(n: Node, x: Value) -> Value:
    known = n.known(x)
    if known is not None and not any(isinstance(item, Dim) for item in known.flat):
        return leaf.constant(np.argwhere(known.astype(x.dtype.numpy)).T.astype(np.int64))
    one = _filled_with(x)
    number = None if one is None else n.known(one)
    if x.rank and number is not None and number.item():
        return _all_places(x)
    return ops.nonzero(x, count=n.fresh("nonzero"))


def _filled_with(x: Value) -> Value | None:
    """The one element that is everywhere in a tensor, or None."""
    while x.op in (ops.expand, ops.unsqueeze):
        x = x.operands[0]
    return x if x.rank == 0 else None


def _all_places(x: Value) -> Value:
    """Every place of a tensor, as sizes tell it: exporters write ranges in this way."""
    rows = [
        build.reshape(build.broadcast_to(build.expand_dims(ops.iota(size=s), range(1, x.rank - i)), x.shape), (-1,))
        for i, s in enumerate(x.shape)
    ]
    return build.stack(rows)


@rule("Compress")
def compress(n: Node, x: Value, condition: Value, *, axis: int | None = None) -> Value:
    """Slices along an axis where a condition holds, or elements in the order of memory without an axis."""
    along = build.reshape(x, (-1,)) if axis is None else x
    places = build.select(_nonzero(n, condition), axis=0, index=0)
    return ops.gather(along, places, axis=0 if axis is None else axis)


@rule("Unique")
def unique(n: Node, x: Value, *, axis: int | None = None, sorted_: bool = True) -> Made:
    """Different slices along an axis, or elements without one; their first indices, the one for each, how often."""
    found = ops.unique(x, axis=axis, in_order=sorted_, count=n.fresh("unique"))
    return found[0], found[1], found[2], found[3]


@rule("ReverseSequence")
def reverse_sequence(n: Node, x: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    """The first n steps of each sequence reversed, the others as they are."""
    if {batch_axis, time_axis} != {0, 1}:
        raise n.malformed(f"batch axis {batch_axis} and time axis {time_axis}", hint="they are 0 and 1")
    y = x if batch_axis == 0 else build.swap(x, 0, 1)
    steps = ops.iota(size=y.shape[1])
    length = build.expand_dims(ops.cast(sequence_lens, dtype=i64), 1)
    places = ops.where(ops.less(steps, length), length - 1 - steps, steps)
    y = ops.gather_nd(y, build.expand_dims(places, -1), batch=1)
    return y if batch_axis == 0 else build.swap(y, 0, 1)

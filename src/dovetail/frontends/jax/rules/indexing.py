"""Reading and writing by index: starts are clamped where windows are read, and windows outside are not written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.jax.importing import Node, rule
from dovetail.frontends.jax.rules.reductions import combines
from dovetail.frontends.jax.rules.shapes import placed
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_, i64
from dovetail.ir.value import Value
from dovetail.ops import build

_COMBINED = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}


def _clamped(x: Value, most: int) -> Value:
    return ops.minimum(ops.maximum(ops.cast(x, dtype=i64), 0), most)


def _sizes(x: Value) -> list[int]:
    return [s for s in x.shape if isinstance(s, int)]


@rule("stablehlo.dynamic_slice")
def dynamic_slice(n: Node) -> Value:
    x, *starts = n.operands
    sizes: Sequence[int] = n.attrs["slice_sizes"]
    for at, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        whole = _sizes(x)[at]
        if size != whole:
            places = ops.iota(size=size, dtype=i64) + _clamped(start, whole - size)
            x = ops.gather(x, places, axis=at - x.rank)
    return x


@rule("stablehlo.dynamic_update_slice")
def dynamic_update_slice(n: Node) -> Value:
    """Each element of the result is one of the update where its place is in the window, else one of x."""
    x, new, *starts = n.operands
    inside: Value | None = None
    for at, start in enumerate(starts):
        whole, size = _sizes(x)[at], _sizes(new)[at]
        if size == whole:
            continue
        places = ops.iota(size=whole, dtype=i64) - _clamped(start, whole - size)
        here = ops.bit_and(ops.greater_equal(places, 0), ops.less(places, size))
        here = placed(here, (at,), x.shape)
        inside = here if inside is None else ops.bit_and(inside, here)
        new = ops.gather(new, _clamped(places, size - 1), axis=at - x.rank)
    return new if inside is None else ops.where(inside, new, x)


def _vectors(indices: Value, at: int) -> tuple[list[Value], list[int]]:
    """The parts of index vectors, and the axes of the indices that are left."""
    if at == indices.rank:
        return [indices], list(range(indices.rank))
    axis = at - indices.rank
    parts = [ops.squeeze(build.cut(indices, axis, i, i + 1), axes=(axis,)) for i in range(_sizes(indices)[at])]
    return parts, [a for a in range(indices.rank) if a != at]


@rule("stablehlo.gather")
def gather(n: Node) -> Value:
    x, indices = n.operands
    axes = n.axes("dimension_numbers")
    none: tuple[int, ...] = ()
    offsets, collapsed = axes.get("offset_dims", none), axes.get("collapsed_slice_dims", none)
    batched, of_indices = axes.get("operand_batching_dims", none), axes.get("start_indices_batching_dims", none)
    mapped = axes.get("start_index_map", none)
    window: Sequence[int] = n.attrs["slice_sizes"]
    parts, left = _vectors(indices, axes.get("index_vector_dim", (0,))[0])
    shape = [s for s in n.type.shape if isinstance(s, int)]
    if 0 in shape or 0 in x.shape:
        if 0 in shape:
            return build.zeros(shape, x.dtype)
        raise n.unsupported(f"from {x.type}, which has no elements")
    free = [a for a in range(len(shape)) if a not in offsets]
    if len(mapped) == 1 and not batched and collapsed == mapped and _is_rest_whole(x, window, mapped[0]):
        # One axis is indexed: rows of a table.
        (axis,) = mapped
        found = ops.gather(x, _clamped(parts[0], _sizes(x)[axis] - 1), axis=axis - x.rank)
        now = [*offsets[:axis], *free, *offsets[axis:]]
        return build.transpose(found, [now.index(a) for a in range(len(shape))])
    kept = [a for a in range(x.rank) if a not in collapsed and a not in batched]
    places: list[Value] = []
    for axis in range(x.rank):
        place = placed(leaf.scalar(0, i64), (), shape)
        if axis in batched:
            along = free[left.index(of_indices[batched.index(axis)])]
            place = placed(ops.iota(size=_sizes(x)[axis], dtype=i64), (along,), shape)
        elif axis in mapped:
            start = _clamped(parts[mapped.index(axis)], _sizes(x)[axis] - window[axis])
            place = placed(start, free, shape)
        if axis in kept and window[axis] > 1:
            along = offsets[kept.index(axis)]
            place = place + placed(ops.iota(size=window[axis], dtype=i64), (along,), shape)
        places.append(place)
    return ops.gather_nd(x, build.stack(places, axis=-1)) if places else placed(x, (), shape)


def _is_rest_whole(x: Value, window: Sequence[int], axis: int) -> bool:
    return all(window[a] == (1 if a == axis else size) for a, size in enumerate(_sizes(x)))


@rule("stablehlo.scatter")
def scatter(n: Node) -> Value:
    """Elements are written into all of x as one axis; those of windows that do not fit go into one more at its end."""
    if len(n.operands) != 3:
        raise n.unsupported(f"into {len(n.operands) // 3} tensors at once")
    x, indices, updates = n.operands
    if not updates.tensor.count or not x.tensor.count:
        return x
    axes = n.axes("scatter_dimension_numbers")
    none: tuple[int, ...] = ()
    window, inserted = axes.get("update_window_dims", none), axes.get("inserted_window_dims", none)
    batched, of_indices = axes.get("input_batching_dims", none), axes.get("scatter_indices_batching_dims", none)
    mapped = axes.get("scatter_dims_to_operand_dims", none)
    parts, left = _vectors(indices, axes.get("index_vector_dim", (0,))[0])
    shape, sizes = _sizes(updates), _sizes(x)
    free = [a for a in range(len(shape)) if a not in window]
    kept = [a for a in range(x.rank) if a not in inserted and a not in batched]
    place, fits = build.zeros(shape, i64), build.full(shape, True, bool_)
    for axis, size in enumerate(sizes):
        step = math.prod(sizes[axis + 1 :])
        span = shape[window[kept.index(axis)]] if axis in kept else 1
        if axis in batched:
            along = free[left.index(of_indices[batched.index(axis)])]
            place = place + placed(ops.iota(size=size, dtype=i64), (along,), shape) * step
        elif axis in mapped:
            start = placed(ops.cast(parts[mapped.index(axis)], dtype=i64), free, shape)
            here = ops.bit_and(ops.greater_equal(start, 0), ops.less_equal(start, size - span))
            fits, place = ops.bit_and(fits, here), place + start * step
        if span > 1:
            along = window[kept.index(axis)]
            place = place + placed(ops.iota(size=span, dtype=i64), (along,), shape) * step
    whole = math.prod(sizes)
    places = ops.reshape(ops.where(fits, place, whole), (math.prod(shape), 1))
    flat = ops.pad(ops.reshape(x, (whole,)), leaf.scalar(0, x.dtype), axis=-1, after=1)
    rows = ops.reshape(updates, (math.prod(shape),))
    found = ops.scatter_nd(flat, places, rows, reduction=_reduction(n))
    return ops.reshape(build.cut(found, -1, 0, whole), sizes)


def _reduction(n: Node) -> str:
    (block,) = n.operation.blocks
    if not block.operations and block.returned == block.arguments[1:]:
        return "none"
    name = combines(n, block)
    if name not in _COMBINED:
        raise n.unsupported(f"by {name}")
    return _COMBINED[name]

"""Operators that move elements: views, slices, concatenation, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail import ops
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.shared.slicing import sliced
from dovetail.frontends.torch.importing.node import Node, axis_of, with_axis
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, smallest
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ops import build

_FAR = 2**62
"""Bounds from here on mean the end of an axis."""


@rule(
    "view.default",
    "view_copy.default",
    "reshape.default",
    "_unsafe_view.default",
    "flatten.using_ints",
    "unflatten.int",
)
def reshape(n: Node, x: Value, *_: Any) -> Value:
    """The same elements in another shape."""
    return build.reshape(x, n.shape)


@rule(
    "alias.default",
    "alias_copy.default",
    "clone.default",
    "contiguous.default",
    "lift_fresh_copy.default",
    "lift_fresh.default",
    "resolve_conj.default",
    "resolve_neg.default",
    "dropout.default",
)
def same(n: Node, x: Value, *_: Any, **__: Any) -> Value:
    """x itself."""
    return x


@rule("detach.default", "detach_copy.default", "detach_.default")
def detach(n: Node, x: Value) -> Value:
    """x, through which no gradient flows; constants and integers have none."""
    return x if x.op is leaf.CONST or not x.dtype.is_float else ops.stop_gradient(x)


@rule("transpose.int", "transpose_copy.int")
def transpose(n: Node, x: Value, dim0: int, dim1: int) -> Value:
    """Two axes change places."""
    return build.swap(x, dim0, dim1) if x.rank else x


@rule("t.default", "t_copy.default")
def t(n: Node, x: Value) -> Value:
    """A matrix transposed; a vector as it is."""
    return build.swap(x, 0, 1) if x.rank == 2 else x


@rule("permute.default", "permute_copy.default")
def permute(n: Node, x: Value, dims: Sequence[int]) -> Value:
    """The axes in another order."""
    return build.transpose(x, [d % x.rank for d in dims]) if x.rank else x


@rule("unsqueeze.default", "unsqueeze_copy.default")
def unsqueeze(n: Node, x: Value, dim: int) -> Value:
    """An axis of size 1 put in."""
    return build.expand_dims(x, dim)


@rule("squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.default", "squeeze_copy.dim", "squeeze_copy.dims")
def squeeze(n: Node, x: Value, dims: int | Sequence[int] | None = None) -> Value:
    """Axes of size 1 left out."""
    if x.rank == 0:
        return x
    listed = range(x.rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = [d for d in listed if x.shape[d] == 1]
    return build.squeeze_dims(x, [d % x.rank - x.rank for d in gone]) if gone else x


@rule("expand.default", "expand_copy.default")
def expand(n: Node, x: Value, size: Sequence[Size], *, implicit: bool = False) -> Value:
    """Axes of size 1 repeated."""
    return build.broadcast_to(x, n.shape)


@rule("broadcast_to.default", "expand_as.default")
def broadcast_to(n: Node, x: Value, _: Any) -> Value:
    """Axes of size 1 repeated."""
    return build.broadcast_to(x, n.shape)


@rule("slice.Tensor", "slice_copy.Tensor")
def slice_(n: Node, x: Value, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1) -> Value:
    """x[start:end:step] along an axis."""
    axis = axis_of(x, dim)
    first: Size = 0 if start is None else start
    last = _FAR if end is None else end
    whole = x.shape[axis]
    if isinstance(last, int) and last >= _FAR:
        last = whole
    if first == 0 and last == whole and step == 1:
        return x
    return sliced(x, axis, first, last, step)


@rule("narrow.default", "narrow_copy.default")
def narrow(n: Node, x: Value, dim: int, start: Size, length: Size) -> Value:
    """`length` elements of an axis from `start` on."""
    axis = axis_of(x, dim)
    first = x.shape[axis] + start if isinstance(start, int) and start < 0 else start
    return build.cut(x, axis, first, first + length)


@rule("select.int", "select_copy.int")
def select(n: Node, x: Value, dim: int, index: Size) -> Value:
    """One element of an axis, which goes."""
    return build.select(x, axis=dim, index=index)


@rule("cat.default", "concat.default", "concatenate.default")
def cat(n: Node, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Tensors one after the other along an axis; empty vectors among them count for nothing."""
    rank = len(n.shape)
    kept = [cast(t, n.dtype) for t in tensors if not (t.shape == (0,) and rank != 1)]
    if not kept:
        return build.zeros(n.shape, n.dtype)
    return kept[0] if len(kept) == 1 else ops.concat(*kept, axis=dim if dim < 0 else dim - rank)


@rule("stack.default")
def stack(n: Node, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Tensors of one shape along a new axis."""
    return build.stack([cast(t, n.dtype) for t in tensors], axis=dim)


@rule(
    "split.Tensor",
    "split.sizes",
    "split_with_sizes.default",
    "split_copy.Tensor",
    "split_with_sizes_copy.default",
    "chunk.default",
    "unsafe_split.Tensor",
    "unsafe_chunk.default",
    "tensor_split.sections",
    "tensor_split.indices",
)
def split(n: Node, x: Value, _: Any, dim: int = 0) -> Made:
    """An axis cut into pieces."""
    axis = axis_of(x, dim)
    return build.split_axis(x, [t.shape[axis] for t in n.types], axis=axis)


@rule("unbind.int", "unbind_copy.int")
def unbind(n: Node, x: Value, dim: int = 0) -> Made:
    """The elements of an axis, each on its own."""
    return tuple(build.select(x, axis=dim, index=i) for i in range(len(n.types)))


@rule("repeat.default", "tile.default")
def repeat(n: Node, x: Value, repeats: Sequence[Size]) -> Value:
    """x repeated along each axis; new axes are in front."""
    rank = max(x.rank, len(repeats))
    wide = build.expand_dims(x, range(rank - x.rank)) if rank > x.rank else x
    return build.tile(wide, [1] * (rank - len(repeats)) + list(repeats))


@rule("repeat_interleave.self_int")
def repeat_interleave(n: Node, x: Value, repeats: Size, dim: int | None = None, *, output_size: Any = None) -> Value:
    """Each element of an axis repeated."""
    along = build.reshape(x, (-1,)) if dim is None else x
    return build.repeat(along, repeats, axis=0 if dim is None else dim)


@rule("flip.default")
def flip(n: Node, x: Value, dims: Sequence[int]) -> Value:
    """Axes reversed."""
    return ops.flip(x, axes=tuple(sorted(axis_of(x, d) for d in dims))) if dims and x.rank else x


@rule("roll.default")
def roll(n: Node, x: Value, shifts: Size | Sequence[Size], dims: int | Sequence[int] = ()) -> Value:
    """Elements shifted along axes; what leaves at one end comes in at the other."""
    amounts = list(shifts) if isinstance(shifts, list | tuple) else [shifts]
    axes = [dims] if isinstance(dims, int) else list(dims)
    if not axes:
        flat = build.reshape(x, (-1,))
        return build.reshape(_rolled(n, flat, amounts[0], -1), x.shape) if x.rank else x
    for amount, dim in zip(amounts, axes, strict=True):
        x = _rolled(n, x, amount, axis_of(x, dim))
    return x


def _rolled(n: Node, x: Value, shift: Any, axis: int) -> Value:
    whole = x.shape[axis]
    if whole == 0:
        return x
    if isinstance(shift, Dim) or isinstance(whole, Dim):
        if not isinstance(shift, int):
            places = ops.mod(ops.iota(size=whole) - n.value(shift, i64), size_value(whole))
            return ops.gather(x, places, axis=axis)
        start = whole - shift if shift > 0 else -shift
    else:
        start = -shift % whole
    if start == 0 or start == whole:
        return x
    return ops.concat(build.cut(x, axis, start, whole), build.cut(x, axis, 0, start), axis=axis)


@rule("unfold.default", "unfold_copy.default")
def unfold(n: Node, x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of an axis, each along a new last axis."""
    if x.rank == 0:
        return build.reshape(x, n.shape) if size == 1 else build.zeros(n.shape, n.dtype)
    axis = axis_of(x, dimension)
    starts = ops.iota(size=n.shape[axis - 1]) * step
    places = build.expand_dims(starts, 1) + ops.iota(size=size)
    return build.move_axis(ops.gather(x, places, axis=axis), axis + x.rank + 1, -1)


@rule("diagonal.default", "diagonal_copy.default")
def diagonal(n: Node, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of two axes, along a new last axis."""
    first, second = axis_of(x, dim1), axis_of(x, dim2)
    rest = [a for a in range(-x.rank, 0) if a not in (first, second)]
    matrix = build.transpose(x, [a + x.rank for a in (*rest, first, second)])
    rows, columns = matrix.shape[-2:]
    steps = ops.iota(size=n.shape[-1])
    places = (steps + max(-offset, 0)) * size_value(columns) + (steps + max(offset, 0))
    flat = build.reshape(matrix, (*matrix.shape[:-2], rows * columns))
    return ops.gather(flat, places, axis=-1)


@rule("tril.default", "triu.default")
def triangle(n: Node, x: Value, diagonal: int = 0) -> Value:
    """A matrix on one side of a diagonal, 0 on the other."""
    rows, columns = x.shape[-2:]
    row, column = ops.unsqueeze(ops.iota(size=rows), axes=(-1,)), ops.iota(size=columns)
    lower = n.op_type.startswith("tril")
    kept = ops.less_equal(column, row + diagonal) if lower else ops.less_equal(row + diagonal, column)
    return ops.where(kept, x, n.value(0, x.dtype))


@rule("slice_scatter.default")
def slice_scatter(
    n: Node, x: Value, src: Value, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> Value:
    """x with a slice of an axis replaced."""
    axis = axis_of(x, dim)
    whole = x.shape[axis]
    first = _front(start, whole, 0)
    last = whole if end is None or (isinstance(end, int) and end >= _FAR) else _front(end, whole, whole)
    src = cast(src, x.dtype)
    if step != 1:
        places = ops.iota(size=src.shape[axis]) * step + size_value(first)
        return _put_along(x, src, places, axis)
    if src.shape[axis] == 0:
        return x
    pieces: list[Value] = []
    if first != 0:
        pieces.append(build.cut(x, axis, 0, first))
    pieces.append(src if src.shape == _with(x.shape, axis, src.shape[axis]) else _stretched(src, x, axis))
    if last != whole:
        pieces.append(build.cut(x, axis, last, whole))
    return pieces[0] if len(pieces) == 1 else ops.concat(*pieces, axis=axis)


def _front(bound: Size | None, whole: Size, default: Size) -> Size:
    if bound is None:
        return default
    if isinstance(bound, int) and isinstance(whole, int):
        return max(0, min(bound + whole if bound < 0 else bound, whole))
    if isinstance(bound, int):
        return whole + bound if bound < 0 else smallest(bound, whole) if bound > 1 else bound
    return bound


def _with(shape: tuple[Size, ...], axis: int, size: Size) -> tuple[Size, ...]:
    return tuple(size if a - len(shape) == axis else s for a, s in enumerate(shape))


def _stretched(src: Value, x: Value, axis: int) -> Value:
    return build.broadcast_to(src, _with(x.shape, axis, src.shape[axis]))


def _put_along(x: Value, src: Value, places: Value, axis: int) -> Value:
    """x with slices along an axis replaced at these places."""
    index = build.broadcast_to(build.expand_dims(places, range(1, -axis)) if axis < -1 else places, src.shape)
    return ops.scatter_elements(x, index, src, axis=axis)


@rule("select_scatter.default")
def select_scatter(n: Node, x: Value, src: Value, dim: int, index: Size) -> Value:
    """x with one element of an axis replaced."""
    axis = axis_of(x, dim)
    at = x.shape[axis] + index if isinstance(index, int) and index < 0 else index
    hit = ops.equal(ops.iota(size=x.shape[axis]), size_value(at))
    shaped = build.expand_dims(hit, range(1, -axis)) if axis < -1 else hit
    return ops.where(shaped, build.expand_dims(cast(src, x.dtype), axis), x)


@rule("copy.default")
def copy(n: Node, x: Value, src: Value, non_blocking: bool = False) -> Value:
    """The second tensor in the type of the first."""
    return build.broadcast_to(cast(src, x.dtype), x.shape)


@rule("pixel_shuffle.default")
def pixel_shuffle(n: Node, x: Value, upscale_factor: int) -> Value:
    """Channels moved into squares of pixels."""
    r, (height, width) = upscale_factor, x.shape[-2:]
    lead, channels = x.shape[:-3], n.shape[-3]
    parts = build.reshape(x, (*lead, channels, r, r, height, width))
    k = len(lead)
    moved = build.transpose(parts, [*range(k + 1), k + 3, k + 1, k + 4, k + 2])
    return build.reshape(moved, n.shape)


@rule("pixel_unshuffle.default")
def pixel_unshuffle(n: Node, x: Value, downscale_factor: int) -> Value:
    """Squares of pixels moved into channels."""
    r, lead, channels = downscale_factor, x.shape[:-3], x.shape[-3]
    height, width = n.shape[-2:]
    parts = build.reshape(x, (*lead, channels, height, r, width, r))
    k = len(lead)
    moved = build.transpose(parts, [*range(k + 1), k + 2, k + 4, k + 1, k + 3])
    return build.reshape(moved, n.shape)


@rule("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(n: Node, x: Value) -> Value:
    """Pairs along the last axis as complex numbers."""
    real, imag = (build.select(x, axis=-1, index=i) for i in (0, 1))
    return ops.complex_(real, imag)


@rule("view_as_real.default", "view_as_real_copy.default")
def view_as_real(n: Node, x: Value) -> Value:
    """Complex numbers as pairs along a new last axis."""
    return build.stack([ops.real(x), ops.imag(x)], axis=-1)


@rule("meshgrid.indexing", "meshgrid.default")
def meshgrid(n: Node, tensors: Sequence[Value], *, indexing: str = "ij") -> Made:
    """Each vector along an axis of its own."""
    rank, swapped = len(tensors), indexing == "xy"
    order = [1, 0, *range(2, rank)] if swapped and rank > 1 else list(range(rank))
    vectors = [with_axis(t) for t in tensors]
    return tuple(
        build.broadcast_to(build.expand_dims(v, [a for a in range(rank) if a != order[i]]), n.types[i].shape)
        for i, v in enumerate(vectors)
    )

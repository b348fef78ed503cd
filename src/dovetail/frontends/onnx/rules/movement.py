"""Operators that move elements and compute nothing."""

from __future__ import annotations

from itertools import accumulate, pairwise

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Ints, Sizes, rule
from dovetail.frontends.shared.computed import numbers_in, reshaped, size_value, sizes_or_run, stretched
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.shared.slicing import slice_in_run, sliced
from dovetail.ir.dim import Dim, Size, largest
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end


@rule("Reshape", until=4)
def reshape_fixed(n: Node, x: Value, *, shape: tuple[int, ...]) -> Value:
    """The same elements in another shape; -1 is what is left, and 0 copies a size."""
    return _reshape(n, x, shape, copies=True)


@rule("Reshape", since=5)
def reshape(n: Node, x: Value, shape: Value, *, allowzero: bool = False) -> Value:
    """The same elements in another shape; -1 is what is left, and 0 copies a size unless allowzero."""
    sizes = sizes_or_run(n, shape, "shape")
    if sizes is None:
        return reshaped(n, x, numbers_in(n, shape, "shape"), copies=not allowzero)
    return _reshape(n, x, sizes, copies=not allowzero)


def _reshape(n: Node, x: Value, sizes: tuple[Size, ...], *, copies: bool) -> Value:
    if copies and any(s == 0 for s in sizes[x.rank :]):
        raise n.malformed(f"a 0 behind the {x.rank} axes that it could copy")
    return build.reshape(x, [x.shape[i] if s == 0 and copies else s for i, s in enumerate(sizes)])


@rule("Transpose")
def transpose(n: Node, x: Value, *, perm: tuple[int, ...] | None = None) -> Value:
    """Permutes axes by `perm`; reverses them by default."""
    return build.transpose(x, perm)


@rule("Squeeze")
def squeeze(n: Node, x: Value, axes: Ints | None = None) -> Value:
    """Axes of size 1 are left out: those named, or all. A size that is a symbol is taken not to be 1, and checked."""
    if axes is not None:
        return build.squeeze_dims(x, axes)
    depends = False
    for axis, size in enumerate(x.shape):
        if isinstance(size, Dim):
            x = ops.sized(ops.sized(x, axis=axis, size=largest(size, 2)), axis=axis, size=size)
            depends = True
    squeezed = build.squeeze_dims(x)
    if depends:
        n.ranked_by_sizes(squeezed)
    return squeezed


@rule("Unsqueeze")
def unsqueeze(n: Node, x: Value, axes: Ints) -> Value:
    """Axes of size 1 are put in."""
    return build.expand_dims(x, axes)


@rule("Flatten")
def flatten(n: Node, x: Value, *, axis: int = 1) -> Value:
    """A matrix: the axes in front of one are its rows, the others its columns."""
    return build.flatten(x, axis=axis)


@rule("Concat", until=3)
def concat_at_one(n: Node, *xs: Value, axis: int = 1) -> Value:
    """Concatenation along an axis."""
    return _concat(n, xs, axis)


@rule("Concat", since=4)
def concat(n: Node, *xs: Value, axis: int) -> Value:
    """Concatenation along an axis."""
    return _concat(n, xs, axis)


def _concat(n: Node, xs: tuple[Value, ...], axis: int) -> Value:
    if not xs:
        raise n.malformed("nothing to join")
    axis = axis_from_end(axis, xs[0].rank)
    return xs[0] if len(xs) == 1 else ops.concat(*xs, axis=axis)


@rule("Split", until=12)
def split_fixed(n: Node, x: Value, split: Sizes | None = None, *, axis: int = 0) -> Made:
    """An axis cut into pieces of given sizes, or into equal ones."""
    return _equal_pieces(n, x, axis) if split is None else _pieces(n, x, split, axis)


@rule("Split", since=13, until=17)
def split(n: Node, x: Value, split: Value | None = None, *, axis: int = 0) -> Made:
    """An axis cut into pieces of given sizes, or into equal ones."""
    return _equal_pieces(n, x, axis) if split is None else _pieces_or_run(n, x, split, axis)


def _equal_pieces(n: Node, x: Value, axis: int) -> Made:
    return tuple(ops.part(x, axis=axis, index=i, parts=n.output_count) for i in range(n.output_count))


@rule("Split", since=18)
def split_by_count(
    n: Node, x: Value, split: Value | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> Made:
    """An axis cut into pieces of given sizes, or into equal ones of which the last may be smaller."""
    if split is not None:
        if num_outputs is not None:
            raise n.malformed("both split and num_outputs")
        return _pieces_or_run(n, x, split, axis)
    count = n.output_count if num_outputs is None else num_outputs
    if count != n.output_count:
        raise n.malformed(f"num_outputs is {count}, and it has {n.output_count} outputs")
    whole = x.shape[axis]
    size = (whole + count - 1) // count
    return _pieces(n, x, (*[size] * (count - 1), whole - size * (count - 1)), axis)


def _pieces_or_run(n: Node, x: Value, split: Value, axis: int) -> Made:
    """Pieces of sizes that are known, or that the run computes."""
    sizes = sizes_or_run(n, split, "split")
    if sizes is not None:
        return _pieces(n, x, sizes, axis)
    counts = numbers_in(n, split, "split")
    if len(counts) != n.output_count:
        raise n.malformed(f"{len(counts)} pieces for {n.output_count} outputs")
    axis = axis_from_end(axis, x.rank)
    starts = accumulate(counts, ops.add, initial=size_value(0))
    return tuple(slice_in_run(n, x, axis, *bounds, 1) for bounds in pairwise(starts))


def _pieces(n: Node, x: Value, sizes: tuple[Size, ...], axis: int) -> Made:
    if len(sizes) != n.output_count:
        raise n.malformed(f"{len(sizes)} pieces for {n.output_count} outputs")
    if any(isinstance(s, int) and s < 0 for s in sizes):
        raise n.malformed(f"pieces of {', '.join(map(str, sizes))}")
    return build.split_axis(x, sizes, axis=axis)


@rule("Slice", until=9)
def slice_fixed(
    n: Node, x: Value, *, starts: tuple[int, ...], ends: tuple[int, ...], axes: tuple[int, ...] | None = None
) -> Value:
    """Parts of axes, from a start to an end that is left out."""
    return _sliced(n, x, starts, ends, axes, None)


@rule("Slice", since=10)
def slice_(n: Node, x: Value, starts: Value, ends: Value, axes: Ints | None = None, steps: Ints | None = None) -> Value:
    """Parts of axes, from a start to an end that is left out, by a step that may be negative."""
    first, last = sizes_or_run(n, starts, "starts"), sizes_or_run(n, ends, "ends")
    if first is not None and last is not None:
        return _sliced(n, x, first, last, axes, steps)
    firsts, lasts = numbers_in(n, starts, "starts"), numbers_in(n, ends, "ends")
    for (axis, step), start, end in zip(_axes_and_steps(n, x, len(firsts), axes, steps), firsts, lasts, strict=True):
        x = slice_in_run(n, x, axis, start, end, step)
    return x


def _axes_and_steps(
    n: Node, x: Value, count: int, axes: tuple[int, ...] | None, steps: tuple[int, ...] | None
) -> list[tuple[int, int]]:
    listed = tuple(range(count)) if axes is None else axes
    by = (1,) * count if steps is None else steps
    if len(listed) != count or len(by) != count:
        raise n.malformed(f"{count} starts, {len(listed)} axes and {len(by)} steps")
    named = [axis_from_end(a, x.rank) for a in listed]
    if len(set(named)) != count:
        raise n.malformed(f"axes {listed} name one axis twice")
    if 0 in by:
        raise n.malformed("a step of 0")
    return list(zip(named, by, strict=True))


def _sliced(
    n: Node,
    x: Value,
    starts: tuple[Size, ...],
    ends: tuple[Size, ...],
    axes: tuple[int, ...] | None,
    steps: tuple[int, ...] | None,
) -> Value:
    if len(starts) != len(ends):
        raise n.malformed(f"{len(starts)} starts and {len(ends)} ends")
    for (axis, step), start, end in zip(_axes_and_steps(n, x, len(starts), axes, steps), starts, ends, strict=True):
        x = sliced(x, axis, start, end, step)
    return x


@rule("Expand")
def expand(n: Node, x: Value, shape: Value) -> Value:
    """x broadcast to a shape, both ways: a 1 in the shape keeps the size that x has."""
    sizes = sizes_or_run(n, shape, "shape")
    if sizes is None:
        return _expand_in_run(n, x, numbers_in(n, shape, "shape"))
    if any(isinstance(s, int) and s < 0 for s in sizes):
        raise n.malformed(f"a shape of {', '.join(map(str, sizes))}")
    lead = max(0, x.rank - len(sizes))
    wanted: list[Size] = [*x.shape[:lead], *sizes]
    for at in range(-min(x.rank, len(sizes)), 0):
        wanted[at] = x.shape[at] if wanted[at] == 1 else wanted[at]
    return build.broadcast_to(x, wanted)


def _expand_in_run(n: Node, x: Value, sizes: list[Value]) -> Value:
    for _ in range(len(sizes) - x.rank):
        x = build.expand_dims(x, 0)
    for axis, size in zip(range(-len(sizes), 0), sizes, strict=True):
        whole = x.shape[axis]
        if whole == 1:
            x = stretched(n, x, axis, size, "expand")
        elif isinstance(whole, Dim):
            found = size_value(whole)
            places = n.counted(ops.where(ops.equal(found, 1), size, found), "expand")
            x = ops.gather(x, ops.minimum(places, found - 1), axis=axis)
    return x


@rule("Tile", since=6)
def tile(n: Node, x: Value, repeats: Value) -> Value:
    """x repeated along each axis."""
    counts = sizes_or_run(n, repeats, "repeats")
    if counts is not None:
        if any(isinstance(count, int) and count < 0 for count in counts):
            raise n.malformed(f"repeats of {', '.join(map(str, counts))}")
        return build.tile(x, counts)
    for axis, count in enumerate(numbers_in(n, repeats, "repeats")):
        whole = size_value(x.shape[axis])
        x = ops.gather(x, ops.rem(n.counted(count * whole, "tile"), whole), axis=axis)
    return x

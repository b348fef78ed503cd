"""Operators that put something around a tensor, or cut something off."""

from __future__ import annotations

from collections.abc import Callable

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Ints, Sizes, rule
from dovetail.frontends.shared.computed import numbers_in, size_value, sizes_or_run
from dovetail.ir import leaf
from dovetail.ir.dim import Size, largest, smallest
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end


@rule("Pad", since=2, until=10)
def pad_fixed(n: Node, x: Value, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Value:
    """A number, the edge or a reflection around a tensor; a negative amount cuts off."""
    return _padded(n, x, pads, mode, leaf.scalar(value, x.dtype), tuple(range(x.rank)))


@rule("Pad", since=11)
def pad(
    n: Node,
    x: Value,
    pads: Value,
    constant_value: Value | None = None,
    axes: Ints | None = None,
    *,
    mode: str = "constant",
) -> Value:
    """A number, the edge, a reflection or the other end around a tensor; a negative amount cuts off."""
    number = leaf.scalar(0, x.dtype) if constant_value is None else build.reshape(constant_value, ())
    named = tuple(range(x.rank)) if axes is None else axes
    sizes = sizes_or_run(n, pads, "pads")
    return _padded(n, x, numbers_in(n, pads, "pads") if sizes is None else sizes, mode, number, named)


def _padded(
    n: Node, x: Value, pads: tuple[Size, ...] | list[Value], mode: str, number: Value, named: tuple[int, ...]
) -> Value:
    if mode != "constant" and mode not in _PLACES:
        raise n.unsupported(f"the mode {mode!r}", hint=f"it takes constant, {', '.join(_PLACES)}")
    axes = [axis_from_end(a, x.rank) for a in named]
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise n.malformed(f"{len(pads)} pads for the axes {', '.join(map(str, named))}")
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if isinstance(before, Value) or isinstance(after, Value):
            assert isinstance(before, Value) and isinstance(after, Value)
            x = _pad_in_run(n, x, axis, before, after, mode, number)
        else:
            padded = x.shape[axis] + before + after
            if isinstance(padded, int) and padded < 0:
                raise n.malformed(f"pads of {before} and {after} around a size of {x.shape[axis]}")
            x = _pad_axis(x, axis, before, after, mode, number)
    return x


def _pad_axis(x: Value, axis: int, before: Size, after: Size, mode: str, number: Value) -> Value:
    cut_before, cut_after = -_below_zero(before), -_below_zero(after)
    if cut_before != 0 or cut_after != 0:
        x = build.cut(x, axis, cut_before, x.shape[axis] - cut_after)
        before, after = before + cut_before, after + cut_after
    if before == 0 and after == 0:
        return x
    if mode == "constant":
        return ops.pad(x, number, axis=axis, before=before, after=after)
    whole = x.shape[axis]
    places = ops.iota(size=whole + before + after) - size_value(before)
    return ops.gather(x, _PLACES[mode](places, size_value(whole)), axis=axis)


def _below_zero(amount: Size) -> Size:
    """The part of an amount that cuts off; a size that may be either is taken to add, which is checked."""
    if isinstance(amount, int):
        return min(amount, 0)
    return amount if all(c < 0 for _, c in amount.terms) else 0


def _pad_in_run(n: Node, x: Value, axis: int, before: Value, after: Value, mode: str, number: Value) -> Value:
    """Padding by amounts that the run computes: first what is cut off, then what is put around it."""
    whole = size_value(x.shape[axis])
    crop = ops.minimum(before, 0)
    kept = ops.maximum(whole + crop + ops.minimum(after, 0), 0)
    total = kept + ops.maximum(before, 0) + ops.maximum(after, 0)
    places = n.counted(total, "pad") - ops.maximum(before, 0)
    inside = _edge(places, kept) if mode == "constant" else _PLACES[mode](places, kept)
    y = ops.gather(x, inside - crop, axis=axis)
    if mode != "constant":
        return y
    hit = ops.bit_and(ops.greater_equal(places, 0), ops.less(places, kept))
    return ops.where(build.expand_dims(hit, range(1, -axis)), y, number)


def _edge(places: Value, whole: Value) -> Value:
    return ops.minimum(ops.maximum(places, 0), whole - 1)


def _wrap(places: Value, whole: Value) -> Value:
    return ops.mod(places, whole)


def _reflect(places: Value, whole: Value) -> Value:
    """There and back again without standing still at the ends; an axis of one element has only that."""
    turn = ops.maximum((whole - 1) * 2, 1)
    there = ops.mod(places, turn)
    return ops.minimum(there, turn - there)


_PLACES: dict[str, Callable[[Value, Value], Value]] = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}
"""Where each mode reads, for places that count from the first element and may lie outside."""


@rule("CenterCropPad")
def center_crop_pad(n: Node, x: Value, shape: Sizes, *, axes: tuple[int, ...] | None = None) -> Value:
    """The middle of a tensor, or zeros around it, so that axes get given sizes."""
    named = tuple(range(x.rank)) if axes is None else axes
    if len(named) != len(shape):
        raise n.malformed(f"{len(shape)} sizes for the axes {', '.join(map(str, named))}")
    for axis, wanted in zip((axis_from_end(a, x.rank) for a in named), shape, strict=True):
        whole = x.shape[axis]
        start = largest(whole - wanted, 0) // 2
        kept = smallest(whole, wanted)
        x = build.cut(x, axis, start, start + kept)
        before = largest(wanted - whole, 0) // 2
        if wanted != kept:
            x = ops.pad(x, leaf.scalar(0, x.dtype), axis=axis, before=before, after=wanted - kept - before)
    return x

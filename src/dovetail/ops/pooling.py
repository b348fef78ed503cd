"""Pooling over [n, c, *spatial]: one number for each place of a window. Global pools are reductions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size, evaluate, product
from dovetail.ir.dtype import FLOATS, INTEGERS, DType, i64
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, TupleType, Type, tensors
from dovetail.ir.value import Value
from dovetail.ops import adjoint, elementwise
from dovetail.ops.conv_adjoint import ones, windows_summed_back
from dovetail.ops.gradient import Parts
from dovetail.ops.primitive import Array, TypeRule, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.special import lowest, wide
from dovetail.ops.window import Around, PerAxis, Window, padded_by, slid, tapped, taps, windows

_REAL = (*INTEGERS, *FLOATS)


def _pooled(allowed: Sequence[DType], *, indices: bool = False) -> TypeRule:
    def rule(
        facts: Facts,
        x: Type,
        *,
        window: tuple[int, ...],
        strides: tuple[int, ...],
        dilations: tuple[int, ...],
        padding: tuple[Size, ...],
        ceil: bool,
        **others: Any,
    ) -> Type:
        image = tensor(x)
        dtype = one_dtype(facts, [image], allowed)
        along = windows(facts, image, window, strides, dilations, padding)
        for of in along:
            for amount in (of.before, of.after):
                facts.at_least(of.reach - 1, amount, "the window's reach, against padding that it must look beyond")
        if others.get("p", 1) <= 0:
            raise TypeRuleError(f"{facts.op} with p = {others['p']}", hint="p is above 0")
        shape = (*image.shape[:2], *slid(facts, image, along, ceil=ceil))
        values = TensorType(dtype, shape)
        return TupleType((values, TensorType(i64, shape))) if indices else values

    return rule


def _one_per_tap(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensors(result)[0].count * math.prod(attrs["window"])


class Slide:
    """A window on its way over an array, and what each of its taps sees."""

    def __init__(
        self,
        x: Array,
        window: tuple[int, ...],
        strides: tuple[int, ...],
        dilations: tuple[int, ...],
        padding: tuple[int, ...],
        ceil: bool,
    ) -> None:
        count = x.ndim - 2
        self.spatial = x.shape[2:]
        self.window, self.strides, self.dilations = window, strides, dilations
        self.before, self.after = padding[:count], padding[count:]
        self.places: list[int] = []
        self.over: list[int] = []
        """How far the last window hangs over the padding, which it may in ceil mode."""
        for i, length in enumerate(self.spatial):
            along = Window(window[i], strides[i], dilations[i], self.before[i], self.after[i])
            places = evaluate(along.places(length, ceil=ceil), {})
            end = (places - 1) * strides[i] + evaluate(along.reach, {})
            self.places.append(places)
            self.over.append(max(0, end - length - self.before[i] - self.after[i]))

    def seen(self, x: Array, around: Any, beyond: Any) -> Iterator[Array]:
        """Yield what each tap sees at every place: the array, the padding around it, or nothing beyond that."""
        padded = padded_by(x, self.before, self.after, around)
        whole = padded_by(padded, [0] * len(self.over), self.over, beyond)
        for tap in taps(self.window):
            yield tapped(whole, tap, self.places, self.strides, self.dilations)


def _max_pull(g: Value, y: Value, x: Value, **options: Any) -> Parts:
    """Give the gradient of each window to its largest element; the first of equals."""
    return (_sent_back(g, max_pool_indices(x, **options)[1], x),)


def _max_indices_pull(g: tuple[Value | None, ...], y: Value, x: Value, **options: Any) -> Parts:
    return (None if g[0] is None else _sent_back(g[0], y[1], x),)


def _sent_back(g: Value, places: Value, x: Value) -> Value:
    """Gradients added at places that are counted within each channel."""
    flat = (*x.shape[:2], product(x.shape[2:]))
    seen = (*g.shape[:2], product(g.shape[2:]))
    into = adjoint.zeros(flat, x.dtype)
    lost = adjoint.added_at(into, adjoint.reshaped(places, seen), adjoint.reshaped(g, seen), -1)
    return adjoint.reshaped(lost, x.shape)


@primitive(_pooled(_REAL), flops=_one_per_tap, pull=_max_pull)
def max_pool(
    x: Array,
    *,
    window: PerAxis,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    padding: Around = 0,
    ceil: bool = False,
) -> Array:
    """The largest element at each place of a window; padding never wins, NaN does."""
    slide = Slide(x, window, strides, dilations, padding, ceil)
    nothing = lowest(x.dtype)
    return reduce(np.maximum, slide.seen(x, nothing, nothing))


@primitive(_pooled(_REAL, indices=True), flops=_one_per_tap, pull=_max_indices_pull)
def max_pool_indices(
    x: Array,
    *,
    window: PerAxis,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    padding: Around = 0,
    ceil: bool = False,
) -> tuple[Array, Array]:
    """The largest element at each place of a window, and where in its channel it stands; the first of equals."""
    slide = Slide(x, window, strides, dilations, padding, ceil)
    nothing = lowest(x.dtype)
    numbered = np.arange(np.prod(slide.spatial, dtype=np.int64)).reshape((1, 1, *slide.spatial))
    shape = (*x.shape[:2], *slide.places)
    best, place = np.full(shape, nothing, x.dtype), np.full(shape, -1, np.int64)
    for element, at in zip(slide.seen(x, nothing, nothing), slide.seen(numbered, -1, -1), strict=True):
        is_nan = (element != element) & (best == best)
        better = (at >= 0) & ((place < 0) | (element > best) | is_nan)
        best, place = np.where(better, element, best), np.where(better, at, place)
    return best, place


def _average_pull(g: Value, y: Value, x: Value, *, ceil: bool, count_padding: bool, **window: Any) -> Parts:
    """Distribute the gradient of each window to its elements in equal parts."""
    one = ones((1, 1, *x.shape[2:]), x.dtype)
    # The sum of ones over their mean is what the mean divides by, padding included where it counts.
    divisor = lp_pool(one, ceil=ceil, p=1.0, **window) / average_pool(
        one, ceil=ceil, count_padding=count_padding, **window
    )
    return (windows_summed_back(g / divisor, x.shape, **window),)


@primitive(_pooled(FLOATS), flops=_one_per_tap, pull=_average_pull)
def average_pool(
    x: Array,
    *,
    window: PerAxis,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    padding: Around = 0,
    ceil: bool = False,
    count_padding: bool = False,
) -> Array:
    """The mean at each place of a window, over the array alone or over it and its padding."""
    slide = Slide(x, window, strides, dilations, padding, ceil)
    counted = np.ones((1, 1, *slide.spatial), np.int64)
    total = sum(slide.seen(x.astype(wide(x.dtype)), 0, 0))
    return np.asarray(total / sum(slide.seen(counted, int(count_padding), 0)), x.dtype)


def _lp_pull(g: Value, y: Value, x: Value, *, ceil: bool, p: float, **window: Any) -> Parts:
    zero = elementwise.equal(y, 0.0)
    share = elementwise.where(zero, 0.0, g * elementwise.pow_(elementwise.where(zero, 1.0, y), 1.0 - p))
    slope = elementwise.sign(x) * elementwise.pow_(elementwise.abs_(x), p - 1.0)
    return (windows_summed_back(share, x.shape, **window) * slope,)


@primitive(_pooled(FLOATS), flops=_one_per_tap, pull=_lp_pull)
def lp_pool(
    x: Array,
    *,
    window: PerAxis,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    padding: Around = 0,
    ceil: bool = False,
    p: float = 2.0,
) -> Array:
    """The p-norm at each place of a window: the p-th root of the sum of |x| ** p."""
    slide = Slide(x, window, strides, dilations, padding, ceil)
    powers = np.abs(x.astype(wide(x.dtype))) ** p
    return np.asarray(sum(slide.seen(powers, 0, 0)) ** (1 / p), x.dtype)


FAMILY = family(globals())

__all__ = ["average_pool", "lp_pool", "max_pool", "max_pool_indices"]

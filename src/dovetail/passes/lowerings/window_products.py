"""A convolution by filters of a run as a matrix product: im2col by copies of shifted images.

Filters that only a run knows, those of a training step, are packed by the product's kernel. Where there are fewer
results than taps, as in the gradient of filters, windows are the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from itertools import product as every
from math import prod

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.passes.claims import Claims

_MOST_COPIES = 64
"""Shifted images, at most."""
_LONG_ROW = 32
"""Pixels of a row from which on convolution is faster on every target: copies are written and read once more."""
_FEW_FILTERS = 8
"""Filters of a group for which products would leave most of a register tile empty."""
_MOST_BYTES = 8 << 20
"""Copies that are there at once, about: the batch is cut into parts."""


@dataclass(frozen=True, slots=True)
class _Windows:
    """The sizes of a convolution along its spatial axes."""

    window: tuple[int, ...]
    out: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def is_by_result(self) -> bool:
        """Whether there are fewer results than taps, so that there is one copy for each result."""
        return prod(self.out) < prod(self.window)

    @property
    def copies(self) -> int:
        return min(prod(self.out), prod(self.window))


def multiplies_windows(value: Value) -> bool:
    """Whether `lower_window_products` takes a convolution."""
    windows = _windows(value)
    if windows is None:
        return False
    w = value.operands[1]
    filters = w.shape[0]
    few = not isinstance(filters, int) or filters // value.attrs["groups"] < _FEW_FILTERS
    if few or windows.copies > _MOST_COPIES or not _is_of_a_run(w):
        return False
    return windows.is_by_result or prod(windows.window) == 1 or windows.out[-1] < _LONG_ROW


def _windows(value: Value) -> _Windows | None:
    """The sizes where all along spatial axes are known, and the numbers are f32."""
    x, w = value.operands[:2]
    if value.dtype is not f32 or value.op is not ops.conv:
        return None
    found: list[tuple[int, ...]] = []
    for listed in (w.shape[2:], value.shape[2:], value.attrs["padding"], x.shape[2:]):
        numbers = tuple([size for size in listed if isinstance(size, int)])
        if len(numbers) != len(listed) or 0 in (*w.shape, *x.shape):
            return None
        found.append(numbers)
    window, out, padding, _ = found
    return _Windows(window, out, value.attrs["strides"], value.attrs["dilations"], padding)


def _is_of_a_run(w: Value) -> bool:
    """Whether a value depends on an input, so that it is not known when parameters are bound."""
    seen: set[Value] = set()
    pending = [w]
    while pending:
        value = pending.pop()
        if value.op in (leaf.INPUT, leaf.ARGUMENT):
            return True
        for operand in value.operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return False


def lower_window_products(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """The product of filters with what their windows see."""
    windows = _windows(value)
    if windows is None:
        return None
    x, w = operands[:2]
    groups: int = value.attrs["groups"]
    # [g, m, c · taps]
    filters = ops.reshape(w, (groups, w.shape[0] // groups, prod(w.shape[1:])))
    parts = [_multiplied(windows, part, filters, w.shape[1]) for part in _parts(x, windows)]
    return parts[0] if len(parts) == 1 else ops.concat(*parts, axis=-parts[0].rank)


def _parts(x: Value, windows: _Windows) -> Sequence[Value]:
    """The images in parts whose copies stay small."""
    images, rest = x.shape[0], prod([size for size in x.shape[1:] if isinstance(size, int)])
    if not isinstance(images, int) or windows.copies == 1:
        return [x]
    size = prod(windows.window if windows.is_by_result else windows.out)
    each = x.shape[1] * size * windows.copies * f32.itemsize if isinstance(x.shape[1], int) else rest
    count = min(images, max(1, -(-images * each // _MOST_BYTES)))
    edges = [images * i // count for i in range(count + 1)]
    return [build.cut(x, -x.rank, a, b) for a, b in pairwise(edges)]


def _multiplied(windows: _Windows, x: Value, filters: Value, channels: Size) -> Value:
    """The convolution of some images."""
    images, groups = x.shape[0], filters.shape[0]
    count = len(windows.out)
    padded = build.pad_dims(x, (0, 0, *windows.padding[:count]), (0, 0, *windows.padding[count:]))
    if windows.is_by_result:
        # [n, results, g · c, *window] -> [g, n · results, c · taps] by [g, c · taps, m]
        seen = _stacked(padded, windows.out, windows.strides, windows.window, windows.dilations, axis=1)
        results = prod(windows.out)
        apart = ops.reshape(seen, (images * results, groups, channels * prod(windows.window)))
        made = build.swap(apart, 0, 1) @ build.swap(filters, 1, 2)
        made = ops.reshape(made, (groups, images, results, filters.shape[1]))
        made = build.transpose(made, (1, 0, 3, 2))
    else:
        # [n, g · c, taps, *out] -> [g, m, c · taps] by [n, g, c · taps, pixels]
        seen = _stacked(padded, windows.window, windows.dilations, windows.out, windows.strides, axis=2)
        made = filters @ ops.reshape(seen, (images, groups, channels * prod(windows.window), prod(windows.out)))
    return ops.reshape(made, (images, groups * filters.shape[1], *windows.out))


def _stacked(
    x: Value, places: Sequence[int], apart: Sequence[int], sizes: Sequence[int], steps: Sequence[int], *, axis: int
) -> Value:
    """Images that start at each place, `sizes` pixels `steps` apart, along a new axis."""
    found: list[Value] = []
    for place in every(*map(range, places)):
        seen = x
        for i, (at, far, size, step) in enumerate(zip(place, apart, sizes, steps, strict=True), x.rank - len(places)):
            start = at * far
            seen = build.slice_axis(seen, axis=i, start=start, stop=start + (size - 1) * step + 1, step=step)
        found.append(seen)
    return build.stack(found, axis=axis)


__all__ = ["lower_window_products", "multiplies_windows"]

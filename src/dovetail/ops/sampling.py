"""Places between pixels: which pixels they are read from, and with what weight. One axis at a time.

`of` is the array library: NumPy, or one that has its functions by the same names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.ir.literal import Array


def weigh(pixels: Array, weight: Array, of: Any = np) -> Array:
    """Pixels times weights; one without weight is not read, whatever stands there."""
    return of.where(weight == 0, 0, pixels * weight)


def pixels_at(
    at: Array, size: int, mode: str, padding: str, span: tuple[float, float], of: Any = np
) -> list[tuple[Array, Array]]:
    """Return the pixels that places along an axis read, with their weights. `span` is where reflections are."""
    if mode == "cubic":
        first = of.floor(at)
        rest = at - first
        return [_pixel(first + k, cubic(of.abs(rest - k), of=of), size, span, padding, of) for k in (-1, 0, 1, 2)]
    if padding != "zeros":
        at = _padded(at, size, span, padding, of)
    if mode == "nearest":
        return [_pixel(of.rint(at), of.ones_like(at), size, span, "zeros", of)]
    first = of.floor(at)
    return [_pixel(first + k, 1 - of.abs(at - first - k), size, span, "zeros", of) for k in (0, 1)]


def _padded(at: Array, size: int, span: tuple[float, float], padding: str, of: Any) -> Array:
    if padding == "reflection":
        width = span[1] - span[0]
        # Every second copy of the image runs backwards.
        turn = of.mod(at - span[0], 2 * width) if width else of.zeros_like(at)
        at = span[0] + of.minimum(turn, 2 * width - turn)
    return of.clip(at, 0, size - 1)


def _pixel(
    at: Array, weight: Array, size: int, span: tuple[float, float], padding: str, of: Any
) -> tuple[Array, Array]:
    """Return a pixel to read; outside of the image it has no weight."""
    if padding != "zeros":
        at = _padded(at, size, span, padding, of)
    inside = (at >= 0) & (at <= size - 1)
    return of.where(inside, at, 0).astype(np.int64), of.where(inside, weight, of.where(of.isnan(at), np.nan, 0))


def cubic(distance: Array, a: float = -0.75, of: Any = np) -> Array:
    """Return the weight of Keys' cubic convolution."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return of.where(d <= 1, near, of.where(d < 2, far, 0))

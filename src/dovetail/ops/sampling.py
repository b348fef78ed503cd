"""Places between pixels: which pixels they are read from, and with what weight. One axis at a time, in plain NumPy."""

from __future__ import annotations

import numpy as np

from dovetail.ir.literal import Array


def weigh(pixels: Array, weight: Array) -> Array:
    """Pixels times weights; one without weight is not read, whatever stands there."""
    return np.where(weight == 0, 0, pixels * weight)


def pixels_at(at: Array, size: int, mode: str, padding: str, span: tuple[float, float]) -> list[tuple[Array, Array]]:
    """The pixels that places along an axis are read from, with their weights. `span` is where reflections turn."""
    if mode == "cubic":
        first = np.floor(at)
        rest = at - first
        return [_pixel(first + k, cubic(np.abs(rest - k)), size, span, padding) for k in (-1, 0, 1, 2)]
    if padding != "zeros":
        at = _padded(at, size, span, padding)
    if mode == "nearest":
        return [_pixel(np.rint(at), np.ones_like(at), size, span, "zeros")]
    first = np.floor(at)
    return [_pixel(first + k, 1 - np.abs(at - first - k), size, span, "zeros") for k in (0, 1)]


def _padded(at: Array, size: int, span: tuple[float, float], padding: str) -> Array:
    if padding == "reflection":
        width = span[1] - span[0]
        # Every second copy of the image runs backwards.
        turn = np.mod(at - span[0], 2 * width) if width else np.zeros_like(at)
        at = span[0] + np.minimum(turn, 2 * width - turn)
    return np.clip(at, 0, size - 1)


def _pixel(at: Array, weight: Array, size: int, span: tuple[float, float], padding: str) -> tuple[Array, Array]:
    """A whole pixel to read; outside of the image it weighs nothing."""
    if padding != "zeros":
        at = _padded(at, size, span, padding)
    inside = (at >= 0) & (at <= size - 1)
    return np.where(inside, at, 0).astype(np.int64), np.where(inside, weight, np.where(np.isnan(at), np.nan, 0))


def cubic(distance: Array, a: float = -0.75) -> Array:
    """The weight of Keys' cubic convolution."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))

"""Weights without the numbers below the smallest normal one, with which a multiplication takes a hundred times as long.

Such a number becomes the smallest normal one of its sign: what that changes in a sum is far below its rounding. What
was there is kept after the weights, so that they can be made again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.aligned import aligned, on_a_line

_SMALLEST = np.float32(2.0**-126)


def normal(packed: Array) -> Array:
    """An array that begins with a line of the caches: as it was where all numbers are normal or 0, else a flat one with
    the numbers that were there after the weights."""
    size = np.abs(packed)
    tiny = (size < _SMALLEST) & (size > 0)
    if not tiny.any():
        return on_a_line(packed)
    at = np.flatnonzero(tiny).astype(np.int32)
    was = packed.reshape(-1)[at]
    count = np.array([at.size], np.int32)
    joined = aligned((packed.size + 2 * at.size + 1,))
    np.concatenate([packed.reshape(-1), was, at.view(np.float32), count.view(np.float32)], out=joined)
    joined[at] = np.copysign(_SMALLEST, was)
    return joined


def as_before(packed: Array, shape: Sequence[int]) -> Array:
    """Return the array of this shape that `normal` took."""
    if packed.ndim > 1:
        return packed
    size, count = math.prod(shape), int(packed[-1:].view(np.int32)[0])
    whole, was = packed[:size].copy(), packed[size : size + count]
    whole[packed[size + count : size + 2 * count].view(np.int32)] = was
    return whole.reshape(tuple(shape))

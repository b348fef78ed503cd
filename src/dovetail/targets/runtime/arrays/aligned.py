"""Arrays that begin at a cache line, so that no vector is in two of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dovetail.ir.literal import Array

ALIGNMENT = 64


def aligned(shape: tuple[int, ...], dtype: type[Any] = np.float32) -> Array:
    """An array whose contents are not set."""
    raw = np.empty(np.dtype(dtype).itemsize * math.prod(shape) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : raw.size - ALIGNMENT + start].view(dtype).reshape(shape)


def on_a_line(x: Array) -> Array:
    """The array itself where it begins with a line, else a copy that does."""
    if x.ctypes.data % ALIGNMENT == 0:
        return x
    copy = aligned(x.shape)
    copy[...] = x
    return copy

"""Functions that NumPy does not have, and what every dtype is summed in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dovetail.ir.literal import Array

_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: Array) -> Array:
    """Compute the error function exactly as the C library does: slow and plain."""
    return np.asarray(_erf(x.astype(np.float64)), x.dtype)


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which sums and chains of one dtype are kept before they are rounded once."""
    if dtype.kind in "biu":
        return dtype
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the identity of max: no element is below it."""
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def highest(dtype: np.dtype[Any]) -> Any:
    """Return the identity of min: no element is above it."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def whole(x: Array, dtype: np.dtype[Any]) -> Array:
    """Floats as integers: cut towards zero, kept in range, NaN as 0. Plain astype differs by machine here."""
    limits = np.iinfo(dtype)
    cut = np.trunc(x.astype(np.float64))
    # float(limits.max) may round up to a number that does not fit, so >= and not >.
    below, above = cut <= float(limits.min), cut >= float(limits.max)
    inside = np.where(below | above | np.isnan(cut), 0.0, cut).astype(dtype)
    return np.where(below, dtype.type(limits.min), np.where(above, dtype.type(limits.max), inside))

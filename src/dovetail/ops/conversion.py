"""Numbers of one dtype as numbers of another."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dovetail.ir.dtype import (
    NARROW,
    DType,
    bool_,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    of_numpy,
)
from dovetail.ir.literal import Array
from dovetail.ops.special import whole

Rounding = Literal["up", "down", "nearest"]
EIGHT_BIT_FLOATS = (f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0)


def converted(x: Array, dtype: DType, *, saturate: bool = True, rounding: Rounding = "up") -> Array:
    """Return the same numbers in another dtype; `saturate` and `rounding` are for floats of 8 bits."""
    if x.dtype == dtype.numpy:
        return x
    x = _widened(x)
    if dtype is bool_:
        return x != 0
    real = np.real(x) if dtype.kind != "complex" else x
    if dtype in NARROW:
        if dtype.is_integer:
            return _low_bits(real, dtype)
        wide = real.astype(np.float64)
        return _power_of_two(wide, saturate, rounding) if dtype is f8e8m0 else _narrowed(wide, dtype, saturate)
    if dtype.is_integer and real.dtype.kind not in "biu":
        return whole(real, dtype.numpy)
    return real.astype(dtype.numpy)


def _widened(x: Array) -> Array:
    """Numbers of a narrow dtype in one that NumPy computes in and that holds them all."""
    of = of_numpy(x.dtype)
    if of not in NARROW:
        return x
    return x.astype({"int": np.int8, "uint": np.uint8}.get(of.kind, np.float32))


def _low_bits(x: Array, dtype: DType) -> Array:
    """Integers of less than 8 bits: higher bits are dropped."""
    numbers = x.astype(np.int64) if x.dtype.kind in "biu" else whole(x, np.dtype(np.int64))
    return (numbers & (2**dtype.bits - 1)).astype(np.uint8).view(dtype.numpy)


def _narrowed(x: Array, dtype: DType, saturate: bool) -> Array:
    """Floats of 8 bits and less, rounded to the nearest, halves to even."""
    least, largest = dtype.range
    return _odd(np.clip(x, least, largest) if saturate else x).astype(dtype.numpy)


def _odd(x: Array) -> Array:
    """f64 as f32; what is cut off leaves the last bit set, so that no later rounding takes it for a half."""
    near = x.astype(np.float32)
    even = near.view(np.uint32) & 1 == 0
    moved = np.isfinite(near) & (near.astype(np.float64) != x) & even
    return np.where(moved, np.nextafter(near, np.where(x > near, np.inf, -np.inf).astype(np.float32)), near)


def _power_of_two(x: Array, saturate: bool, rounding: Rounding) -> Array:
    """Exponents of 8 bits, 127 more than they mean; 255 is NaN, which negative numbers become as well."""
    fraction, exponent = np.frexp(x)  # the fraction of a power of two is a half
    place = exponent + 126 + (fraction > 0.5 if rounding == "up" else (rounding == "nearest") & (fraction >= 0.75))
    place = np.where(x == 0, -1, np.where(np.isinf(x), 255, place))
    if saturate:
        place = np.clip(place, 0, 254)
    fits = (place >= 0) & (place <= 254) & (x >= 0)
    return np.where(fits, place, 255).astype(np.uint8).view(f8e8m0.numpy)

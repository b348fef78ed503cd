"""How near is near enough: one table, by dtype."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dovetail.ir.dtype import DType, bf16, c64, f16, f32, f64


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|got - expected| <= atol + rtol * |expected|."""

    rtol: float
    atol: float


TABLE = MappingProxyType(
    {
        f64: Tolerance(1e-12, 1e-12),
        f32: Tolerance(2e-5, 2e-5),
        f16: Tolerance(1e-2, 2e-2),
        bf16: Tolerance(4e-2, 1e-1),
        c64: Tolerance(2e-5, 2e-5),
    }
)
"""What is not listed is exact: whole numbers, bool, and narrow types, in which nothing is computed."""


def roundoff(dtype: DType) -> float:
    """Half the distance from 1 to the next number of a float type."""
    return float(_limits(dtype).eps) / 2


def assert_close(got: NDArray[Any], expected: NDArray[Any], dtype: DType, *, scale: float = 1.0) -> None:
    """`got` is of this dtype, and near `expected`, which may be wider. `scale` stretches the tolerance."""
    assert got.dtype == dtype.numpy, f"got dtype {got.dtype}, expected {dtype.name}"
    assert got.shape == expected.shape, f"got shape {got.shape}, expected {expected.shape}"
    if dtype not in TABLE:
        nowhere = (got != got) & (expected != expected)  # NaN, which narrow floats have
        _refuse((got != expected) & ~nowhere, got, expected, f"{dtype.name} is exact")
        return
    wide = np.complex128 if dtype.kind == "complex" else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    rtol, atol = TABLE[dtype].rtol * scale, TABLE[dtype].atol * scale
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(a - b) <= atol + rtol * np.abs(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isfinite(a) & np.isfinite(b) & near)
    if dtype.is_float:
        # A narrow type overflows where float64 does not.
        largest = float(_limits(dtype).max)
        same |= np.isinf(a) & (np.sign(a) == np.sign(b)) & (np.abs(b) * (1 + rtol) >= largest)
    _refuse(~same, got, expected, f"{dtype.name} within {atol:g} + {rtol:g} * |expected|")


def _limits(dtype: DType) -> Any:
    # NumPy does not know bfloat16, and ml_dtypes does not type what it knows.
    return ml_dtypes.finfo(dtype.numpy)  # pyright: ignore[reportUnknownVariableType]


def _refuse(wrong: NDArray[np.bool_], got: NDArray[Any], expected: NDArray[Any], rule: str) -> None:
    if not wrong.any():
        return
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(got.astype(np.complex128) - expected.astype(np.complex128))
    worst = np.unravel_index(int(np.argmax(np.where(wrong, np.nan_to_num(apart, nan=np.inf), -1.0))), got.shape)
    at = [int(i) for i in worst]
    raise AssertionError(
        f"{int(wrong.sum())} of {got.size} elements are off; the worst is at {at}: "
        f"got {got[worst]!s}, expected {expected[worst]!s} ({rule})"
    )

"""The judge of nearness refuses what is not near."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.ir.dtype import FLOATS, DType, bf16, bool_, c64, f16, f32, f64, i32
from tests.tolerances import TABLE, assert_close, roundoff


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_rounding_is_near_and_twice_the_tolerance_is_not(dtype: DType) -> None:
    expected = np.array([1.0, -3.0])
    assert_close((expected * (1 + roundoff(dtype))).astype(dtype.numpy), expected, dtype)
    off = expected + np.array([0.0, 2 * (TABLE[dtype].atol + 3 * TABLE[dtype].rtol)])
    with pytest.raises(AssertionError, match=r"1 of 2 elements are off; the worst is at \[1\]"):
        assert_close(off.astype(dtype.numpy), expected, dtype)
    assert_close(off.astype(dtype.numpy), expected, dtype, scale=4)


def test_roundoff_by_hand() -> None:
    assert [roundoff(d) for d in (f64, f32, f16, bf16)] == [2.0**-53, 2.0**-24, 2.0**-11, 2.0**-8]


@pytest.mark.parametrize(
    ("got", "expected", "dtype"),
    [
        ([np.nan], [1.0], f32),
        ([1.0], [np.nan], f32),
        ([np.inf], [-np.inf], f32),
        ([np.inf], [1e30], f32),
        ([1.0], [np.inf], f32),
        ([2], [3], i32),
        ([True], [False], bool_),
        ([1 + 1j], [1 - 1j], c64),
        ([1.0], [[1.0]], f32),
    ],
)
def test_refused(got: list[complex], expected: list[complex], dtype: DType) -> None:
    with pytest.raises(AssertionError):
        assert_close(np.array(got, dtype.numpy), np.array(expected), dtype)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(AssertionError, match="got dtype float64, expected f32"):
        assert_close(np.array([1.0]), np.array([1.0]), f32)


@pytest.mark.parametrize(
    ("got", "expected", "dtype"),
    [
        ([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf], f32),
        ([np.inf, -np.inf], [70000.0, -1e9], f16),
        ([2], [2], i32),
        ([1 + 1j], [1 + 1.000001j], c64),
    ],
)
def test_accepted(got: list[complex], expected: list[complex], dtype: DType) -> None:
    assert_close(np.array(got, dtype.numpy), np.array(expected), dtype)


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_no_axes_and_no_elements(shape: tuple[int, ...]) -> None:
    assert_close(np.zeros(shape, np.float32), np.zeros(shape), f32)

"""Products summed over axes, against loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, INTEGERS, NUMBERS, DType, bf16, bool_, c64, f16, f32
from tests.ops.meaning import Array, array, meaning, wrapped
from tests.tolerances import assert_close


def _numbers(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    generator = np.random.default_rng(seed)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        return generator.integers(limits.min, limits.max, shape, dtype.numpy, endpoint=True)
    x = generator.normal(size=shape)
    return array(dtype, x + 1j * generator.normal(size=shape) if dtype is c64 else x)


def _exact(x: Array, dtype: DType) -> Any:
    return x.astype(object) if dtype.is_integer else x.astype(np.complex128 if dtype is c64 else np.float64)


def _check(got: Array, expected: Any, dtype: DType) -> None:
    if dtype.is_integer:
        assert got.reshape(-1).tolist() == [wrapped(int(n), dtype) for n in expected.reshape(-1)]
    else:
        assert_close(got, expected, dtype)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_matmul(dtype: DType) -> None:
    x, y = _numbers(dtype, (2, 1, 3, 4), 0), _numbers(dtype, (5, 4, 2), 1)
    a, b = _exact(x, dtype), _exact(y, dtype)
    expected = np.empty((2, 5, 3, 2), a.dtype)
    for i, j, m, n in np.ndindex(2, 5, 3, 2):
        expected[i, j, m, n] = sum(a[i, 0, m, k] * b[j, k, n] for k in range(4))
    _check(meaning(ops.matmul, x, y), expected, dtype)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_dot(dtype: DType) -> None:
    """Batch axis of 2, contracted axes of 3 and 4, in another order on either side."""
    x, y = _numbers(dtype, (3, 5, 2, 4), 2), _numbers(dtype, (4, 2, 6, 3), 3)
    a, b = _exact(x, dtype), _exact(y, dtype)
    expected = np.empty((2, 5, 6), a.dtype)
    for batch, m, n in np.ndindex(2, 5, 6):
        pairs = itertools.product(range(3), range(4))
        expected[batch, m, n] = sum(a[i, m, batch, j] * b[j, batch, n, i] for i, j in pairs)
    got = meaning(ops.dot, x, y, left=(-4, -1), right=(-1, -4), left_batch=(-2,), right_batch=(-3,))
    _check(got, expected, dtype)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_sums_do_not_stop_growing(dtype: DType) -> None:
    x, y = np.ones((2, 4096), dtype.numpy), np.ones((4096, 3), dtype.numpy)
    assert meaning(ops.matmul, x, y).tolist() == [[4096] * 3] * 2
    assert meaning(ops.dot, x, y, left=(-1,), right=(-2,)).tolist() == [[4096] * 3] * 2


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_sums_over_nothing_are_zero(dtype: DType) -> None:
    x, y = np.zeros((2, 0), dtype.numpy), np.zeros((0, 3), dtype.numpy)
    assert meaning(ops.matmul, x, y).tolist() == [[0] * 3] * 2
    assert meaning(ops.dot, x, y, left=(-1,), right=(-2,)).tolist() == [[0] * 3] * 2
    assert meaning(ops.matmul, y, np.zeros((3, 0), dtype.numpy)).shape == (0, 0)


def test_infinity_times_zero_is_nan_and_no_warning() -> None:
    x, y = np.array([[np.inf, 1.0]], np.float32), np.array([[0.0], [1.0]], np.float32)
    assert math.isnan(meaning(ops.matmul, x, y)[0, 0])
    assert math.isnan(meaning(ops.dot, x, y, left=(-1,), right=(-2,))[0, 0])


def test_contracted_sizes_are_compared() -> None:
    """Trap 29."""
    x, y = leaf.input("x", f32["m", "k"]), leaf.input("y", f32[4, "n"])
    assert [str(c) for c in (x @ y).constraints] == ["k equals 4"]
    assert [str(c) for c in ops.dot(x, y, left=(-1,), right=(-2,)).constraints] == ["k equals 4"]
    z = leaf.input("z", f32[2, 3])
    with pytest.raises(TypeRuleError, match="3 and 4"):
        ops.matmul(z, y)
    with pytest.raises(TypeRuleError, match="3 and 4"):
        ops.dot(z, y, left=(-1,), right=(-2,))
    with pytest.raises(TypeRuleError, match="batch sizes"):
        ops.dot(z, leaf.input("w", f32[5, 3]), left=(-1,), right=(-1,), left_batch=(-2,), right_batch=(-2,))


def test_what_is_no_product_is_refused() -> None:
    x = leaf.input("x", f32[3, 3])
    with pytest.raises(TypeRuleError, match="ranks 1 and 2"):
        ops.matmul(leaf.input("v", f32[3]), x)
    with pytest.raises(TypeRuleError, match="matmul of bool"):
        ops.matmul(leaf.input("b", bool_[3, 3]), leaf.input("b", bool_[3, 3]))
    with pytest.raises(TypeRuleError, match="axes"):
        ops.dot(x, x, left=(-1, -1), right=(-1, -2))
    with pytest.raises(TypeRuleError, match="pair up"):
        ops.dot(x, x, left=(-1,), right=(-1, -2))


def test_flops_are_two_for_each_product() -> None:
    x, y = leaf.input("x", f32[2, "m", 4]), leaf.input("y", f32[4, 5])
    product = x @ y
    assert str(ops.matmul.flops(product.type, (x.type, y.type), product.attrs)) == "80*m"
    general = ops.dot(x, y, left=(-1,), right=(-2,))
    assert str(ops.dot.flops(general.type, (x.type, y.type), general.attrs)) == "80*m"

"""Small arithmetic against Python's mathematics, and as part of a pattern."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, INTEGERS, SIGNED, DType, bool_
from tests.ops.meaning import array, run, wrapped
from tests.tolerances import assert_close


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_clip(dtype: DType) -> None:
    x = leaf.constant(array(dtype, [0, 1, 2, 3, 9]))
    assert run(ops.clip(x, 1, 3)).tolist() == [1, 1, 2, 3, 3]
    assert run(ops.clip(x, 2)).tolist() == [2, 2, 2, 3, 9]
    assert run(ops.clip(x, high=2)).tolist() == [0, 1, 2, 2, 2]
    assert run(ops.clip(x, 5, 2)).tolist() == [2] * 5
    assert ops.clip(x) is x


def test_clip_lets_nan_through() -> None:
    x = leaf.constant(np.array([np.nan, np.inf, -np.inf], np.float32))
    np.testing.assert_array_equal(run(ops.clip(x, -1.0, 1.0)), [np.nan, 1, -1])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers_and_logarithms(dtype: DType) -> None:
    x = leaf.constant(array(dtype, [0.25, 1.0, 3.0, 8.0]))
    numbers = [0.25, 1.0, 3.0, 8.0]
    assert_close(run(ops.square(x)), np.array([n * n for n in numbers]), dtype)
    assert_close(run(ops.exp2(x)), np.array([2**n for n in numbers]), dtype)
    assert_close(run(ops.log2(x)), np.array([math.log2(n) for n in numbers]), dtype)
    assert_close(run(ops.log10(x)), np.array([math.log10(n) for n in numbers]), dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_log_add_exp(dtype: DType) -> None:
    inf = math.inf
    pairs = [
        (0.0, 0.0),
        (1.0, 3.0),
        (2000.0, 1.0),
        (-2000.0, -2000.0),
        (inf, inf),
        (-inf, -inf),
        (-inf, 4.0),
        (inf, 0.0),
    ]
    expected = [
        max(p) if abs(p[0] - p[1]) > 100 or math.isinf(max(p)) else max(p) + math.log1p(math.exp(min(p) - max(p)))
        for p in pairs
    ]
    x, y = (leaf.constant(array(dtype, [p[i] for p in pairs])) for i in (0, 1))
    assert_close(run(ops.log_add_exp(x, y)), np.array(expected), dtype)
    assert_close(run(ops.log_add_exp(y, x)), np.array(expected), dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_is_finite(dtype: DType) -> None:
    x = array(dtype, [0.0, -1.0, math.inf, -math.inf, math.nan])
    got = run(ops.is_finite(leaf.constant(x)))
    assert got.dtype == bool_.numpy
    assert got.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_floor_div(dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    numbers = [0, 1, 2, 3, 7, int(limits.max), int(limits.min)] + ([-1, -2, -3, -7] if dtype in SIGNED else [])
    pairs = list(itertools.product(numbers, repeat=2))
    x, y = (leaf.constant(array(dtype, [p[i] for p in pairs])) for i in (0, 1))
    assert run(ops.floor_div(x, y)).tolist() == [wrapped(a // b if b else 0, dtype) for a, b in pairs]


def test_patterns_may_use_them_all() -> None:
    x, y = leaf.hole("x"), leaf.hole("y")
    for value in (
        ops.clip(x, 0.0, 1.0),
        ops.square(x),
        ops.exp2(x),
        ops.log2(x),
        ops.log10(x),
        ops.log_add_exp(x, y),
        ops.is_finite(x),
        ops.floor_div(x, y),
        ops.reduce_log_sum_exp(x, axes=(-1,)),
    ):
        assert value.known_type is None

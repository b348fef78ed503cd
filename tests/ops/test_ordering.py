"""Sorting against Python's own, which is stable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import FLOATS, INTEGERS, DType, bool_, c64, f32
from tests.ops.meaning import Array, array, meanings

ORDERED = [*INTEGERS, *FLOATS, bool_]


def _rank(number: Any) -> tuple[bool, Any]:
    """NaN is larger than every number and equal to itself."""
    nan = math.isnan(number)
    return nan, 0 if nan else number


def _order(row: list[Any], descending: bool) -> list[int]:
    order = sorted(range(len(row)), key=lambda i: _rank(row[i]))
    if not descending:
        return order
    # From largest to smallest, and among equals from first to last.
    return sorted(order, key=lambda i: [-sum(_rank(other) < _rank(row[i]) for other in row), i])


def _same(got: Array, expected: Array) -> None:
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def _rows(dtype: DType) -> Array:
    numbers = np.random.default_rng(7).integers(0, 5, (3, 9))
    if dtype is bool_:
        return numbers > 2
    x = array(dtype, numbers)
    if dtype.is_float:
        x[0, 2], x[0, 5], x[1, 1], x[1, 7], x[2, 0], x[2, 1] = np.nan, np.nan, np.inf, -np.inf, 0.0, -0.0
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ORDERED, ids=str)
def test_sort(dtype: DType, descending: bool) -> None:
    x = _rows(dtype)
    expected = [_order([float(n) for n in row], descending) for row in x]
    values, indices = meanings(ops.sort, x, descending=descending)
    assert indices.tolist() == expected
    _same(values, np.array([row[order] for row, order in zip(x, expected, strict=True)]))
    across, places = meanings(ops.sort, x.T, axis=0, descending=descending)
    _same(across, values.T)
    _same(places, indices.T)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", ORDERED, ids=str)
def test_top_k(dtype: DType, largest: bool) -> None:
    x = _rows(dtype)
    expected = [_order([float(n) for n in row], largest)[:4] for row in x]
    values, indices = meanings(ops.top_k, x, k=4, largest=largest)
    assert indices.tolist() == expected
    _same(values, np.array([row[order] for row, order in zip(x, expected, strict=True)]))
    standing = meanings(ops.top_k, x.T, k=4, axis=0, largest=largest, in_order=False)
    assert standing[1].T.tolist() == [sorted(order) for order in expected]
    _same(standing[0].T, np.take_along_axis(x, standing[1].T, 1))


@pytest.mark.parametrize("k", [0, 9])
def test_all_or_none(k: int) -> None:
    x = np.arange(18, dtype=np.int8).reshape(2, 9)
    values, _ = meanings(ops.top_k, x, k=k)
    assert values.tolist() == [row[::-1].tolist()[:k] for row in x]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_sort(shape: tuple[int, int]) -> None:
    values, indices = meanings(ops.sort, np.zeros(shape, np.float32), descending=True)
    assert values.shape == indices.shape == shape


def test_types_and_constraints() -> None:
    x = leaf.input("x", f32["b", "n"])
    found = ops.top_k(x, k=3)
    assert str(found.type) == "(f32[b, 3], i64[b, 3])"
    assert [str(c) for c in found.constraints] == ["n at_least 3"]
    assert str(ops.top_k(x, k=symbol("k"), axis=0)[1].type) == "i64[k, n]"
    with pytest.raises(TypeRuleError, match="2 and 3"):
        ops.top_k(leaf.input("y", f32[2]), k=3)
    with pytest.raises(TypeRuleError, match="-1 and 0"):
        ops.top_k(leaf.input("y", f32[2]), k=-1)
    with pytest.raises(TypeRuleError, match="sort of c64"):
        ops.sort(leaf.input("z", c64[2]))


def test_flops_grow_with_the_length() -> None:
    x = leaf.input("x", f32[10, 1024])
    assert ops.sort.flops(ops.sort(x).type, (x.type,), ops.sort(x).attrs) == 10 * 1024 * 11

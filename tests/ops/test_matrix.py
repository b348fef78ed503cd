"""Determinants against Leibniz' formula."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, DType, f32, f64, i64
from tests.ops.meaning import Array, array, meaning
from tests.tolerances import assert_close


def _by_permutations(m: Array) -> float:
    size = len(m)
    total = 0.0
    for order in itertools.permutations(range(size)):
        inversions = sum(order[i] > order[j] for i in range(size) for j in range(i + 1, size))
        total += (-1) ** inversions * math.prod(float(m[i, order[i]]) for i in range(size))
    return total


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_det(dtype: DType) -> None:
    x = array(dtype, np.random.default_rng(3).normal(size=(2, 3, 4, 4)))
    expected = np.array([[_by_permutations(m) for m in row] for row in x])
    assert_close(meaning(ops.det, x), expected, dtype)


def test_det_of_small_and_singular_matrices() -> None:
    assert meaning(ops.det, np.zeros((0, 0))) == 1.0
    assert meaning(ops.det, np.array([[1.0, 2.0], [2.0, 4.0]])) == 0.0
    assert meaning(ops.det, np.array([[7.0]])) == pytest.approx(7.0)


def test_det_takes_square_matrices_of_floats() -> None:
    with pytest.raises(TypeRuleError, match="square"):
        ops.det(leaf.input("x", f32[3, 4]))
    with pytest.raises(TypeRuleError, match="matrices"):
        ops.det(leaf.input("x", f64[3]))
    with pytest.raises(TypeRuleError, match="i64"):
        ops.det(leaf.input("x", i64[3, 3]))

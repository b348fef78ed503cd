"""Products of groups of rows against NumPy by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, f64, i64
from dovetail.targets.reference.interpreter import evaluate

ENDS = np.array([2, 2, 5])


def test_rows_meet_the_matrix_of_their_group() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(6, 3)), rng.normal(size=(3, 3, 4))
    y = ops.grouped_matmul(leaf.input("x", f64[6, 3]), leaf.input("w", f64[3, 3, 4]), leaf.input("ends", i64[3]))
    got = evaluate(Graph.of({"y": y}), {"x": x, "w": w, "ends": ENDS})["y"]
    by_hand = np.stack([x[0] @ w[0], x[1] @ w[0], x[2] @ w[2], x[3] @ w[2], x[4] @ w[2], np.zeros(4)])
    np.testing.assert_allclose(got, by_hand, rtol=1e-13)


def test_outer_products_of_each_group() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(6, 4))
    z = ops.grouped_outer(leaf.input("x", f64[6, 3]), leaf.input("y", f64[6, 4]), leaf.input("ends", i64[3]))
    got = evaluate(Graph.of({"z": z}), {"x": x, "y": y, "ends": ENDS})["z"]
    np.testing.assert_allclose(got, np.stack([x[:2].T @ y[:2], np.zeros((3, 4)), x[2:5].T @ y[2:5]]), rtol=1e-13)


def test_what_does_not_fit_is_refused() -> None:
    x, w, ends = leaf.input("x", f32[6, 3]), leaf.input("w", f32[3, 3, 4]), leaf.input("ends", i64[3])
    with pytest.raises(TypeRuleError, match="contracted sizes: found 3 and 4"):
        ops.grouped_matmul(x, ops.permute(w, order=(-1, -2)), ends)
    with pytest.raises(TypeRuleError, match="ends of groups are f32"):
        ops.grouped_matmul(x, w, leaf.input("ends", f32[3]))
    with pytest.raises(TypeRuleError, match="against the ends of groups: found 3 and 2"):
        ops.grouped_matmul(x, w, leaf.input("ends", i64[2]))
    with pytest.raises(TypeRuleError, match="ranks 2 and 3"):
        ops.grouped_matmul(w, w, ends)
    with pytest.raises(TypeRuleError, match="rows of both"):
        ops.grouped_outer(x, leaf.input("y", f32[5, 4]), ends)

"""softmax, log_softmax and log_sum_exp: from primitives, along any axis, with the guard for rows without any key."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.errors import TypeRuleError
from dovetail.ir.leaf import input
from dovetail.library.log_softmax import log_softmax
from dovetail.library.log_sum_exp import log_sum_exp
from dovetail.library.softmax import softmax
from tests.library.attending import INF, feeds, near, recognised, run

X = input("x", f32[3, 4, 5])


def spelled(x: Value, axis: int = -1) -> Value:
    raised = ops.exp(x - ops.reduce_max(x, axes=(axis,)))
    return raised / ops.reduce_sum(raised, axes=(axis,))


@pytest.mark.parametrize("axis", (-1, -2, -3))
def test_recognised_along_any_axis(axis: int) -> None:
    result = recognised(spelled(X, axis))
    assert result.graph.outputs["y"] is softmax(X, axis=axis)
    arrays = feeds(result.graph)
    raised = np.exp(arrays["x"])
    near(run(result.graph, arrays)["y"], raised / raised.sum(axis=axis, keepdims=True))


def test_two_axes_are_no_softmax() -> None:
    raised = ops.exp(X - ops.reduce_max(X, axes=(-1,)))
    other = raised / ops.reduce_sum(raised, axes=(-2,))
    assert all(v.op is not softmax for v in recognised(other).graph.values)
    both = ops.exp(X - ops.reduce_max(X, axes=(-2, -1)))
    flat = both / ops.reduce_sum(both, axes=(-2, -1))
    assert all(v.op is not softmax for v in recognised(flat).graph.values)


def test_an_axis_is_counted_from_the_end() -> None:
    with pytest.raises(TypeRuleError, match="axis 1"):
        softmax(X, axis=1)
    with pytest.raises(TypeRuleError, match="axis 0"):
        log_softmax(X, axis=0)


@pytest.mark.parametrize("whole", (False, True))
def test_a_guard_makes_0_of_rows_without_any_key(whole: bool) -> None:
    weights = softmax(X) if whole else spelled(X)
    result = recognised(ops.where(ops.is_nan(weights), 0.0, weights))
    assert result.graph.outputs["y"] is softmax(X, empty="zero")
    x = np.zeros((3, 4, 5))
    x[0, 0] = -INF
    got = run(result.graph, {"x": x})["y"]
    assert (got[0, 0] == 0).all()
    near(got[1:], np.full((2, 4, 5), 0.2))


def test_without_a_guard_such_a_row_is_nan() -> None:
    result = recognised(spelled(X))
    x = np.zeros((3, 4, 5))
    x[0, 0] = -INF
    got = run(result.graph, {"x": x})["y"]
    assert np.isnan(got[0, 0]).all()
    assert not np.isnan(got[1:]).any()


def test_a_guard_of_another_value_is_none() -> None:
    other = input("other", f32[3, 4, 5])
    result = recognised(ops.where(ops.is_nan(other), 0.0, spelled(X)))
    assert softmax(X) in result.graph.values


def test_log_softmax_from_primitives_and_from_softmax() -> None:
    shifted = X - ops.reduce_max(X, axes=(-1,))
    plain = shifted - ops.log(ops.reduce_sum(ops.exp(shifted), axes=(-1,)))
    for written in (plain, ops.log(spelled(X)), ops.log(softmax(X))):
        result = recognised(written)
        assert result.graph.outputs["y"] is log_softmax(X)
    arrays = {"x": np.array([[[0.0, 1.0, 2.0, 3.0, -800.0]] * 4] * 3)}
    total = np.log(np.exp([0.0, 1.0, 2.0, 3.0]).sum())
    near(run(recognised(plain).graph, arrays)["y"][0, 0], np.array([0, 1, 2, 3, -800]) - total)


def test_log_sum_exp_from_primitives() -> None:
    highest = ops.reduce_max(X, axes=(-1,))
    result = recognised(ops.log(ops.reduce_sum(ops.exp(X - highest), axes=(-1,))) + highest)
    assert result.graph.outputs["y"] is log_sum_exp(X)
    arrays = feeds(result.graph)
    near(run(result.graph, arrays)["y"], np.log(np.exp(arrays["x"]).sum(axis=-1, keepdims=True)))

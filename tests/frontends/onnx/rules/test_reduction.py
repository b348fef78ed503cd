"""Reductions: axes in every form, whole numbers, sizes that are symbols."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.dtypes import f32, i32, i64
from dovetail.errors import LoadError
from dovetail.frontends.onnx import import_model
from tests.frontends.onnx.build import assert_like_onnxruntime, by_dovetail, model, node

RNG = np.random.default_rng(3)
X = {"x": RNG.uniform(0.5, 2.0, (2, 3, 4)).astype(np.float32)}
LONGER = {"x": RNG.uniform(0.5, 2.0, (5, 3, 7)).astype(np.float32)}
EVERY = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


@pytest.mark.parametrize("kind", EVERY)
def test_axes_in_an_attribute_over_symbolic_sizes(kind: str) -> None:
    reduction = node(f"Reduce{kind} x -> y", axes=[0, 2], keepdims=0)
    assert_like_onnxruntime(model([reduction], {"x": f32["b", 3, "s"]}, ["y"], opset=11), X, LONGER)


@pytest.mark.parametrize("kind", EVERY)
def test_axes_in_an_input(kind: str) -> None:
    made = model([f"Reduce{kind} x axes -> y"], {"x": f32["b", 3, "s"]}, ["y"], initializers={"axes": np.array([-1])})
    assert_like_onnxruntime(made, X, LONGER)


@pytest.mark.parametrize("kind", ["Sum", "Mean", "LogSumExp"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_all_axes_where_none_is_named(kind: str, keepdims: int) -> None:
    made = model([node(f"Reduce{kind} x -> y", keepdims=keepdims)], {"x": f32["b", 3, "s"]}, ["y"], opset=18)
    assert_like_onnxruntime(made, X, LONGER)


def test_no_axes_at_all_leave_what_stands_beside_the_reduction() -> None:
    nodes = [node(f"Reduce{kind} x none -> {kind}", noop_with_empty_axes=1) for kind in ("Sum", "SumSquare", "LogSum")]
    made = model(
        nodes, {"x": f32[2, 3, 4]}, ["Sum", "SumSquare", "LogSum"], initializers={"none": np.zeros(0, np.int64)}
    )
    (got,) = by_dovetail(made, X)
    np.testing.assert_array_equal(got["Sum"], X["x"])
    np.testing.assert_allclose(got["SumSquare"], X["x"] ** 2, rtol=1e-6)
    np.testing.assert_allclose(got["LogSum"], np.log(X["x"]), rtol=1e-5, atol=1e-6)


def test_the_mean_of_whole_numbers_is_cut() -> None:
    made = model([node("ReduceMean x -> y", axes=[1])], {"x": i32[2, "n"]}, ["y"], opset=13)
    got = by_dovetail(made, {"x": np.array([[1, 2, 4], [-1, -2, -4]], np.int32)})
    assert got[0]["y"].tolist() == [[2], [-2]]


def test_a_sum_of_exponentials_does_not_overflow() -> None:
    made = model([node("ReduceLogSumExp x -> y", axes=[1], keepdims=0)], {"x": f32[2, 2]}, ["y"], opset=13)
    (got,) = by_dovetail(made, {"x": np.array([[1000.0, 1000.0], [-np.inf, -np.inf]], np.float32)})
    np.testing.assert_allclose(got["y"], [1000.0 + np.log(2.0), -np.inf])


def test_one_axis_twice_is_refused() -> None:
    with pytest.raises(LoadError, match="one axis twice"):
        import_model(model([node("ReduceSum x -> y", axes=[0, -2])], {"x": i64[2, 3]}, ["y"], opset=11))

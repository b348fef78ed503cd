"""Sorting, extremes and running sums, against onnxruntime: sizes that are symbols, ties, older opsets."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import DovetailError, LoadError, NeedsValueError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32, f64, i64
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node

TIES = np.array([[1, 3, 3, 2, 1], [0, 0, 0, 0, 0], [5, 4, 3, 4, 5]], np.float32)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("axis", "keepdims"), [(0, 1), (1, 0), (-1, 1), (-2, 0)])
def test_extremes_of_ties(op: str, last: int, axis: int, keepdims: int) -> None:
    nodes = [node(f"{op} x -> y", axis=axis, keepdims=keepdims, select_last_index=last)]
    m = model(nodes, {"x": f32["r", "c"]}, ["y"], opset=13)
    assert_like_onnxruntime(m, {"x": TIES}, {"x": TIES[:2, :3]}, {"x": TIES.T.copy()})


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("axis", [0, -1])
def test_cum_sum(axis: int, exclusive: int, reverse: int) -> None:
    nodes = [node("CumSum x a -> y", exclusive=exclusive, reverse=reverse)]
    m = model(nodes, {"x": f64["r", "c"]}, ["y"], opset=14, initializers={"a": np.array(axis)})
    assert_like_onnxruntime(m, {"x": TIES.astype(np.float64)}, {"x": TIES[:1, :2].astype(np.float64)})


def test_cum_sum_takes_one_axis() -> None:
    with pytest.raises(LoadError, match="2 axes"):
        import_model(model(["CumSum x a -> y"], {"x": f32[2, 3]}, ["y"], initializers={"a": ints(0, 1)}))


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax_takes_rows_before_opset_13(opset: int, axis: int) -> None:
    m = model([node("Hardmax x -> y", axis=axis)], {"x": f32["b", 3, 5]}, ["y"], opset=opset)
    assert_like_onnxruntime(m, {"x": np.stack([TIES, -TIES])}, {"x": TIES[None]})


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_top_k_of_ties(axis: int, largest: int) -> None:
    nodes = [node("TopK x k -> v i", axis=axis, largest=largest)]
    m = model(nodes, {"x": f32["r", "c"]}, ["v", "i"], opset=11, initializers={"k": ints(2)})
    assert_like_onnxruntime(m, {"x": TIES}, {"x": TIES[:2, :3]}, {"x": TIES.T.copy()})


def test_top_k_of_old() -> None:
    ten = model(
        [node("TopK x k -> v i", axis=1)], {"x": f32["r", 5]}, ["v", "i"], opset=10, initializers={"k": ints(3)}
    )
    assert_like_onnxruntime(ten, {"x": TIES})
    nine = model([node("TopK x -> v i", axis=1, k=3)], {"x": f32["r", 5]}, ["v", "i"], opset=9)
    (old,) = by_dovetail(nine, {"x": TIES})
    (new,) = by_dovetail(ten, {"x": TIES})
    assert np.array_equal(old["v"], new["v"]) and np.array_equal(old["i"], new["i"])


def test_top_k_without_order_has_the_same_elements() -> None:
    nodes = [node("TopK x k -> v i", sorted=0)]
    m = model(nodes, {"x": f32["r", "c"]}, ["v", "i"], opset=11, initializers={"k": ints(3)})
    (result,) = by_dovetail(m, {"x": TIES})
    assert np.array_equal(np.sort(result["v"]), np.sort(TIES)[:, -3:])
    assert np.array_equal(np.take_along_axis(TIES, result["i"], 1), result["v"])


@pytest.mark.slow
def test_top_k_of_a_number_that_is_a_size() -> None:
    m = model(
        ["Shape z -> k", "Min k three -> least", "TopK x least -> v i"],
        {"x": f32["r", "c"], "z": f32["n"]},
        ["v", "i"],
        opset=13,
        initializers={"three": ints(3)},
    )
    z = np.zeros(9, np.float32)
    assert_like_onnxruntime(m, {"x": TIES, "z": z[:2]}, {"x": TIES, "z": z}, {"x": TIES, "z": z[:0]})


@pytest.mark.slow
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_of_a_number_that_the_run_finds(largest: int) -> None:
    m = model(
        ["ReduceMax z -> top", node("Cast top -> k", to=7), node("TopK x k -> v i", axis=1, largest=largest)],
        {"x": f32["r", "c"], "z": f32[1]},
        ["v", "i"],
        opset=13,
    )
    feeds = [{"x": TIES, "z": np.array([k], np.float32)} for k in (1, 4, 0)]
    assert_like_onnxruntime(m, *feeds)
    with pytest.raises(DovetailError):
        by_dovetail(m, {"x": TIES, "z": np.array([6], np.float32)})


def test_top_k_of_a_number_that_a_caller_chooses_asks_for_it() -> None:
    m = model(["TopK x k -> v i"], {"x": f32["r", "c"], "k": i64[1]}, ["v", "i"], opset=13)
    with pytest.raises(NeedsValueError):
        import_model(m)
    assert_like_onnxruntime(m, {"x": TIES}, fixed={"k": ints(2)})

"""Reading and writing by index, against onnxruntime: sizes that are symbols, and sizes that depend on data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import BindError, LoadError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import bool_, f32, i32, i64
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node


def x_of(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", [np.array(1), np.array(-1), ints(-2), ints(0, -1, 1), np.array([[0], [1]])])
def test_gather_by_constants(index: Array, axis: int) -> None:
    m = model([node("Gather x i -> y", axis=axis)], {"x": f32["a", 3, "c"]}, ["y"], initializers={"i": index})
    assert_like_onnxruntime(m, {"x": x_of(2, 3, 4)}, {"x": x_of(5, 3, 2)})


def test_gather_of_one_place_is_movement() -> None:
    m = model([node("Gather x i -> y", axis=0)], {"x": f32[3, "b", 4]}, ["y"], initializers={"i": np.array(2)})
    assert not any(v.op is ops.gather for v in import_model(m).values)


def test_gather_by_indices_of_the_run() -> None:
    m = model([node("Gather x i -> y", axis=1)], {"x": f32["a", "b"], "i": i32["n", 2]}, ["y"])
    i = np.array([[0, -1], [1, 1], [-2, 0]], np.int32)
    assert_like_onnxruntime(m, {"x": x_of(2, 3), "i": i}, {"x": x_of(1, 2), "i": i[:1]})
    with pytest.raises(BindError, match="index 3"):
        by_dovetail(m, {"x": x_of(2, 3), "i": i + np.int32(2)})


@pytest.mark.slow
def test_gather_elements_and_nd() -> None:
    by_element = model([node("GatherElements x i -> y", axis=1)], {"x": f32["a", "b"], "i": i64["a", "n"]}, ["y"])
    i = np.array([[0, -1, 1], [2, 0, -3]])
    assert_like_onnxruntime(by_element, {"x": x_of(2, 3), "i": i}, {"x": x_of(2, 4), "i": i[:, :1]})
    batched = model([node("GatherND x i -> y", batch_dims=1)], {"x": f32["a", "b", 2], "i": i64["a", "n", 1]}, ["y"])
    assert_like_onnxruntime(batched, {"x": x_of(2, 3, 2), "i": i[..., None]})
    rows = model(["GatherND x i -> y"], {"x": f32["a", "b", 2], "i": i64["n", 2]}, ["y"])
    assert_like_onnxruntime(rows, {"x": x_of(2, 3, 2), "i": np.array([[0, 2], [-1, -1]])})


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    i = np.array([[0, 2], [-1, -2]]) if reduction == "none" else np.array([[0, 0], [-1, -1]])
    elements = model(
        [node("ScatterElements x i u -> y", axis=1, reduction=reduction)],
        {"x": f32["a", "b"], "i": i64["n", "m"], "u": f32["n", "m"]},
        ["y"],
        opset=18,
    )
    u = np.array([[3, -2], [7, 0.5]], np.float32)
    assert_like_onnxruntime(elements, {"x": x_of(2, 3), "i": i, "u": u}, {"x": x_of(3, 4), "i": i[:1], "u": u[:1]})
    rows = model(
        [node("ScatterND x i u -> y", reduction=reduction)],
        {"x": f32["a", "b", 2], "i": i64["n", 2], "u": f32["n", 2]},
        ["y"],
        opset=18,
    )
    places = np.array([[0, 1], [1, -1]]) if reduction == "none" else np.array([[0, 1], [0, 1]])
    assert_like_onnxruntime(rows, {"x": x_of(2, 3, 2), "i": places, "u": u})


def test_scatter_of_old_and_by_an_unknown_reduction() -> None:
    i, u = np.array([[1, 0]]), np.array([[9, 8]], np.float32)
    old = model(
        [node("Scatter x i u -> y", axis=1)], {"x": f32["a", 3], "i": i64[1, 2], "u": f32[1, 2]}, ["y"], opset=9
    )
    assert_like_onnxruntime(old, {"x": x_of(2, 3), "i": i, "u": u})
    with pytest.raises(LoadError, match="mean"):
        import_model(
            model([node("ScatterND x i u -> y", reduction="mean")], {"x": f32[3], "i": i64[1, 1], "u": f32[1]}, ["y"])
        )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, -1])
def test_tensor_scatter(axis: int, mode: str) -> None:
    cache = "b", 4, "t"
    update = ("b", "s", "t") if axis == 1 else ("b", 4, "s")
    m = model(
        [node("TensorScatter c u w -> y", axis=axis, mode=mode)],
        {"c": f32[cache], "u": f32[update], "w": i64["b"]},
        ["y"],
        opset=24,
    )
    starts = ints(0, 2) if mode == "linear" else ints(3, 2)
    for steps in (1, 2):
        c, u = x_of(2, 4, 5), -1 - (x_of(2, steps, 5) if axis == 1 else x_of(2, 4, steps))
        expected = c.copy()
        for b, s in np.ndindex(2, steps):
            at = (starts[b] + s) % c.shape[axis]
            if axis == 1:
                expected[b, at] = u[b, s]
            else:
                expected[b, :, at] = u[b, :, s]
        (result,) = by_dovetail(m, {"c": c, "u": u, "w": starts})
        assert np.array_equal(result["y"], expected)


def test_tensor_scatter_without_places_starts_at_the_front() -> None:
    m = model(["TensorScatter c u -> y"], {"c": f32["b", 4, 2], "u": f32["b", "s", 2]}, ["y"], opset=24)
    c, u = x_of(2, 4, 2), -1 - x_of(2, 3, 2)
    (result,) = by_dovetail(m, {"c": c, "u": u})
    assert np.array_equal(result["y"], np.concatenate([u, c[:, 3:]], axis=1))
    with pytest.raises(LoadError, match="batch"):
        import_model(model([node("TensorScatter c c -> y", axis=0)], {"c": f32[2, 4]}, ["y"], opset=24))


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [i64, f32], ids=str)
def test_one_hot(dtype: Any, axis: int) -> None:
    m = model(
        [node("OneHot i d v -> y", axis=axis)],
        {"i": dtype["a", "b"]},
        ["y"],
        opset=11,
        initializers={"d": np.array([4], dtype.numpy), "v": np.array([-1, 5], np.float32)},
    )
    i = np.array([[0, 3, -1], [-4, 2, 1]]).astype(dtype.numpy)
    assert_like_onnxruntime(m, {"i": i}, {"i": i[:1, :2]})


def test_one_hot_of_old_knows_no_negative_index() -> None:
    m = model(
        ["OneHot i d v -> y"], {"i": i64[2]}, ["y"], opset=9, initializers={"d": np.array(3), "v": np.array([0, 1])}
    )
    (result,) = by_dovetail(m, {"i": ints(-1, 1)})
    assert result["y"].tolist() == [[0, 0, 0], [0, 1, 0]]


@pytest.mark.slow
def test_one_hot_of_a_depth_that_the_run_finds() -> None:
    m = model(
        [node("ReduceMax i -> top", keepdims=0), "Add top one -> d", "OneHot i d v -> y"],
        {"i": i64["n", 30]},
        ["y"],
        opset=13,
        initializers={"one": np.array(1), "v": np.array([0, 1], np.float32)},
    )
    assert_like_onnxruntime(m, {"i": np.arange(60).reshape(2, 30) % 7}, {"i": np.arange(30).reshape(1, 30)})


SPARSE = np.array([[0, 2, 0, -1], [0, 0, 0, 0], [5, 0, 0, 0.5]], np.float32)


@pytest.mark.slow
def test_nonzero_and_what_is_done_with_it() -> None:
    m = model(
        ["NonZero x -> p", "Transpose p -> rows", "GatherND x rows -> found", "Mul found found -> y"],
        {"x": f32["r", 4]},
        ["p", "y"],
    )
    assert_like_onnxruntime(m, {"x": SPARSE}, {"x": SPARSE[:1]}, {"x": SPARSE[1:2]})


def test_nonzero_of_one_number_has_no_axes() -> None:
    m = model(["NonZero x -> p"], {"x": f32[()]}, ["p"])
    (result,) = by_dovetail(m, {"x": np.array(3, np.float32)})
    assert result["p"].shape == (0, 1)


@pytest.mark.slow
def test_nonzero_of_ones_is_a_range() -> None:
    m = model(
        ["Shape x -> s", node("ConstantOfShape s -> one", value=ints(1)), "NonZero one -> p"],
        {"x": f32["r", "c"]},
        ["p"],
    )
    assert not any(v.op is ops.nonzero for v in import_model(m).values)
    assert_like_onnxruntime(m, {"x": x_of(2, 3)}, {"x": x_of(4, 1)})


@pytest.mark.slow
def test_the_number_of_places_is_found_though_nobody_reads_the_places() -> None:
    m = model(
        ["NonZero x -> p", "Shape p -> s", "Gather s one -> n", "Range zero n one -> y", "Mul n n -> z"],
        {"x": f32["r", 4]},
        ["y", "z"],
        initializers={"one": np.array(1), "zero": np.array(0)},
    )
    assert_like_onnxruntime(m, {"x": SPARSE}, {"x": SPARSE[1:2]})


@pytest.mark.slow
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    nodes = [node("Compress x c -> y", **along)]
    m = model(nodes, {"x": f32["r", "c"], "c": bool_["n"]}, ["y"])
    masks = [np.array(mask) for mask in ([True, False, True], [False, True], [False])]
    assert_like_onnxruntime(m, *({"x": x_of(3, 4), "c": mask} for mask in masks))
    known = model(nodes, {"x": f32["r", "c"]}, ["y"], initializers={"c": masks[0]})
    assert_like_onnxruntime(known, {"x": x_of(3, 4)})


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(axis: int | None, ordered: int) -> None:
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    nodes = [node("Unique x -> y first back many", sorted=ordered, **along)]
    m = model(nodes, {"x": f32["r", "c"]}, ["y", "first", "back", "many"])
    x = np.array([[2, 1, 1, 2], [2, 0, 0, 2], [2, 1, 1, 2]], np.float32)
    assert_like_onnxruntime(m, {"x": x}, {"x": x[:, :2].copy()}, {"x": x[1:]})


@pytest.mark.slow
@pytest.mark.parametrize("time_axis", [0, 1])
def test_reverse_sequence(time_axis: int) -> None:
    shape = ("t", "b", 2) if time_axis == 0 else ("b", "t", 2)
    nodes = [node("ReverseSequence x n -> y", time_axis=time_axis, batch_axis=1 - time_axis)]
    m = model(nodes, {"x": f32[shape], "n": i64["b"]}, ["y"])
    for t, lengths in ((4, ints(1, 4, 3)), (3, ints(2, 3))):
        x = x_of(t, len(lengths), 2) if time_axis == 0 else x_of(len(lengths), t, 2)
        assert_like_onnxruntime(m, {"x": x, "n": lengths})

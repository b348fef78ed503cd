"""Shapes as tensors, and tensors of a computed shape, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.errors import BindError, LoadError, NeedsValueError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import DType, bool_, f32, f64, i32, i64
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, by_onnxruntime, model, node


def x_of(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(("start", "end"), [(0, 2), (1, -1), (-2, 9), (-9, 1), (2, 1), (-1, 3)])
def test_shape_from_start_to_end(start: int, end: int) -> None:
    m = model([node("Shape x -> y", start=start, end=end)], {"x": f32["b", 3, "s"]}, ["y"], opset=15)
    assert_like_onnxruntime(m, {"x": x_of(2, 3, 4)}, {"x": x_of(1, 3, 5)})


def test_size_of_symbols() -> None:
    m = model(["Size x -> n", "Shape x -> s"], {"x": f32["b", 3, "s"]}, ["n", "s"], opset=13)
    assert_like_onnxruntime(m, {"x": x_of(2, 3, 4)}, {"x": x_of(1, 3, 5)}, {"x": x_of(0, 3, 5)})


def test_constant_of_a_shape_of_symbols() -> None:
    filled = node("ConstantOfShape s -> y", value=np.array([7], np.int32))
    m = model(["Shape x -> s", filled, "ConstantOfShape s -> z"], {"x": f32["b", 3]}, ["y", "z"])
    assert_like_onnxruntime(m, {"x": x_of(2, 3)}, {"x": x_of(5, 3)})


def test_constant_of_no_axes_is_one_number() -> None:
    m = model(["ConstantOfShape s -> y"], {"x": f32[1]}, ["y"], initializers={"s": ints()})
    (result,) = by_dovetail(m, {"x": x_of(1)})
    assert result["y"].shape == () and result["y"] == 0


def test_constant_of_shape_refuses_what_is_no_shape() -> None:
    for nodes, shape in (
        (["ConstantOfShape s -> y"], ints(2, -1)),
        ([node("ConstantOfShape s -> y", value=ints(1, 2))], ints(2)),
    ):
        with pytest.raises(LoadError):
            import_model(model(nodes, {"x": f32[1]}, ["y"], initializers={"s": shape}))


LARGEST = [node("ReduceMax x -> top", keepdims=0), node("Cast top -> k", to=7), "Unsqueeze k front -> counts"]
"""A number that the run finds: the largest element of x."""


def in_run(nodes: list[Any], **initializers: Array) -> Any:
    return model([*LARGEST, *nodes], {"x": f32["n"]}, ["y"], opset=18, initializers={"front": ints(0), **initializers})


def tops(*numbers: float) -> list[dict[str, Array]]:
    return [{"x": np.array([0, number], np.float32)} for number in numbers]


@pytest.mark.slow
def test_constant_of_a_shape_that_the_run_computes() -> None:
    fill = node("ConstantOfShape s -> y", value=np.array([2.5], np.float32))
    m = in_run([node("Concat counts two counts -> s", axis=0), fill], two=ints(2))
    assert_like_onnxruntime(m, *tops(1, 3, 0))


def test_a_shape_below_zero_that_the_run_computes_is_refused() -> None:
    m = in_run(["Neg counts -> s", "ConstantOfShape s -> y"])
    with pytest.raises(BindError):
        by_dovetail(m, *tops(2))


@pytest.mark.slow
def test_what_the_run_sizes_is_computed_with() -> None:
    m = in_run(
        ["Range zero k one -> r", node("Cast r -> f", to=1), "Mul f f -> q", "Shape q -> s", "Expand half s -> h",
         "Add q h -> y"],
        zero=np.array(0), one=np.array(1), half=np.array(0.5, np.float32),
    )  # fmt: skip
    assert_like_onnxruntime(m, *tops(1, 4, 0))


RANGES = [(0, 5, 1), (5, 0, -2), (3, 3, 1), (-4, 9, 3), (5, 0, 1), (0, 5, -1)]


@pytest.mark.parametrize(("start", "limit", "delta"), RANGES)
@pytest.mark.parametrize("dtype", [i64, i32, f32, f64], ids=str)
def test_range(dtype: DType, start: int, limit: int, delta: int) -> None:
    numbers = {n: np.array(v, dtype.numpy) for n, v in (("a", start), ("b", limit), ("c", delta))}
    m = model(["Range a b c -> y"], {"x": f32[1]}, ["y"], initializers=numbers)
    assert_like_onnxruntime(m, {"x": x_of(1)})


@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0.0, 1.0, 0.1), (0.0, 0.3, 0.1), (1.5, -2.0, -0.25), (1, 0, 0.5)]
)
def test_range_of_fractions(start: float, limit: float, delta: float) -> None:
    numbers = {n: np.array(v, np.float32) for n, v in (("a", start), ("b", limit), ("c", delta))}
    m = model(["Range a b c -> y"], {"x": f32[1]}, ["y"], initializers=numbers)
    assert_like_onnxruntime(m, {"x": x_of(1)})


def test_range_of_sizes() -> None:
    m = model(
        ["Shape x -> s", "Gather s one -> n", "Range zero n one -> y", "Range n double one -> z", "Mul n n -> double"],
        {"x": f32["b", "s"]},
        ["y", "z"],
        initializers={"zero": np.array(0), "one": np.array(1)},
    )
    nodes = list(m.graph.node)
    del m.graph.node[:]
    m.graph.node.extend([*nodes[:3], nodes[4], nodes[3]])
    assert_like_onnxruntime(m, {"x": x_of(1, 3)}, {"x": x_of(1, 7)})


@pytest.mark.parametrize("delta", [1, 3, -2])
def test_range_up_to_a_number_that_the_run_finds(delta: int) -> None:
    m = in_run(["Range start k delta -> y"], start=np.array(2), delta=np.array(delta))
    assert_like_onnxruntime(m, *tops(0, 2, 3, 7))


@pytest.mark.slow
def test_range_of_floats_that_the_run_finds() -> None:
    m = in_run(["Range start top delta -> y"], start=np.array(0.5, np.float32), delta=np.array(0.75, np.float32))
    assert_like_onnxruntime(m, *tops(0, 2.1, 0.5, 7.25))


def test_range_that_a_caller_chooses_asks_for_it() -> None:
    m = model(["Range zero n one -> y"], {"n": i64[()]}, ["y"], initializers={"zero": np.array(0), "one": np.array(1)})
    with pytest.raises(NeedsValueError):
        import_model(m)
    (result,) = by_dovetail(m, {}, fixed={"n": np.array(3)})
    assert result["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 9])
def test_trilu_of_symbols(k: int | None, upper: int) -> None:
    nodes = [node("Trilu x -> y" if k is None else "Trilu x k -> y", upper=upper)]
    m = model(nodes, {"x": f32[2, "r", "c"]}, ["y"], initializers={} if k is None else {"k": np.array(k)})
    assert_like_onnxruntime(m, {"x": x_of(2, 3, 5) + 1}, {"x": x_of(2, 4, 3) + 1})


@pytest.mark.slow
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu_by_a_diagonal_that_is_a_size_or_an_input(upper: int) -> None:
    shaped = model(
        ["Shape x -> s", "Gather s one -> k", node("Trilu x k -> y", upper=upper)],
        {"x": f32[4, "c"]},
        ["y"],
        initializers={"one": np.array(1)},
    )
    assert_like_onnxruntime(shaped, {"x": x_of(4, 2) + 1}, {"x": x_of(4, 3) + 1})
    given = model([node("Trilu x k -> y", upper=upper)], {"x": f32[3, 4], "k": i64[()]}, ["y"])
    assert_like_onnxruntime(given, {"x": x_of(3, 4) + 1, "k": np.array(1)}, {"x": x_of(3, 4) + 1, "k": np.array(-1)})


def test_trilu_of_bools() -> None:
    m = model([node("Trilu x -> y", upper=0)], {"x": bool_["s", "s"]}, ["y"])
    for size in (2, 5):
        (result,) = by_dovetail(m, {"x": np.ones((size, size), np.bool_)})
        assert np.array_equal(result["y"], np.tri(size, dtype=np.bool_))


@pytest.mark.slow
def test_eye_like() -> None:
    m = model(
        ["EyeLike x -> y", node("EyeLike x -> z", dtype=7, k=1), node("EyeLike x -> w", dtype=11, k=-2)],
        {"x": f32["r", "c"]},
        ["y", "z", "w"],
    )
    assert_like_onnxruntime(m, {"x": x_of(3, 5)}, {"x": x_of(4, 2)})


def test_onnxruntime_is_asked() -> None:
    m = model(["Size x -> n"], {"x": f32["b"]}, ["n"])
    assert by_onnxruntime(m, {"x": x_of(3)})["n"] == 3

"""Elementwise operators: broadcasts of symbolic sizes, older opsets, mixed types, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import FLOATS, DType, bool_, f8e5m2, f16, f32, f64, i8, i32, i64, u8, u32
from dovetail.ir.graph import Graph
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node
from tests.tolerances import assert_close


def numbers(dtype: DType, *shape: int, low: float = -3.0, high: float = 3.0, seed: int = 0) -> Array:
    found = np.random.default_rng(seed).uniform(low, high, shape)
    return (found > 0) if dtype is bool_ else found.astype(dtype.numpy)


UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Exp": np.exp,
    "Floor": np.floor,
    "Neg": np.negative,
    "Reciprocal": lambda x: 1 / x,
    "Round": np.rint,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Tan": np.tan,
    "Tanh": np.tanh,
    "Erf": np.vectorize(math.erf),
}


@pytest.mark.parametrize("op_type", UNARY)
def test_of_one_tensor(op_type: str) -> None:
    m = model([f"{op_type} x -> y"], {"x": f32["b", 3]}, ["y"], opset=13)
    feeds = [{"x": numbers(f32, b, 3, low=-0.99, high=0.99)} for b in (2, 5)]
    for feed, found in zip(feeds, by_dovetail(m, *feeds), strict=True):
        assert_close(found["y"], UNARY[op_type](feed["x"].astype(np.float64)), f32)


def test_erf_of_whole_numbers_is_cut() -> None:
    m = model(["Erf x -> y"], {"x": i32[4]}, ["y"])
    (found,) = by_dovetail(m, {"x": np.array([-9, -1, 0, 9], np.int32)})
    assert found["y"].tolist() == [-1, 0, 0, 1]


BINARY = ["Add", "Sub", "Mul", "Div", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Max", "Min"]


@pytest.mark.parametrize("dtype", [f32, i32, i64], ids=str)
@pytest.mark.parametrize("op_type", BINARY)
def test_of_two_tensors_that_broadcast(op_type: str, dtype: DType) -> None:
    m = model([f"{op_type} x y -> z"], {"x": dtype["b", 1, 3], "y": dtype["s", 1]}, ["z"], opset=17)
    low = 1.0 if op_type == "Div" else -3.0
    feeds = [
        {"x": numbers(dtype, b, 1, 3, low=-9, high=9), "y": numbers(dtype, s, 1, low=low, seed=1)}
        for b, s in ((2, 4), (1, 1), (3, 2))
    ]
    assert_like_onnxruntime(m, *feeds)


def test_whole_numbers_are_divided_towards_zero() -> None:
    m = model(["Div x y -> z"], {"x": i32[4], "y": i32[4]}, ["z"])
    (found,) = by_dovetail(m, {"x": np.array([7, -7, 7, -7], np.int32), "y": np.array([2, 2, -2, -2], np.int32)})
    assert found["z"].tolist() == [3, -3, -3, 3]


@pytest.mark.parametrize(
    ("op_type", "function"), [("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.not_equal)]
)
def test_logic(op_type: str, function: Callable[..., Any]) -> None:
    m = model([f"{op_type} x y -> a", "Not a -> z"], {"x": bool_["n", 1], "y": bool_[4]}, ["z"])
    feed = {"x": numbers(bool_, 3, 1), "y": numbers(bool_, 4, seed=3)}
    (found,) = by_dovetail(m, feed)
    assert found["z"].tolist() == (~function(feed["x"], feed["y"])).tolist()


OLDER = ["Add", "Sub", "Mul", "Div", "Pow", "Less", "Greater"]
NUMPY = dict(zip(OLDER, (np.add, np.subtract, np.multiply, np.divide, np.power, np.less, np.greater), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("op_type", OLDER)
def test_older_broadcasts_start_at_an_axis(op_type: str, opset: int) -> None:
    x = numbers(f32, 2, 3, 4, 5, low=0.5, high=2.0)
    for shape, axis, view in (
        ((3, 4), 1, (1, 3, 4, 1)),
        ((2,), 0, (2, 1, 1, 1)),
        ((4, 5), None, (1, 1, 4, 5)),
        ((3,), -3, (1, 3, 1, 1)),
        ((1, 1), 0, (1, 1, 1, 1)),
        ((), None, (1, 1, 1, 1)),
    ):
        y = numbers(f32, *shape, low=0.5, high=2.0, seed=1)
        attributes: dict[str, Any] = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
        made = node(f"{op_type} x y -> z", **attributes)
        m = model([made], {"x": f32["b", 3, 4, "s"], "y": f32[shape]}, ["z"], opset=opset)
        (found,) = by_dovetail(m, {"x": x, "y": y})
        expected = NUMPY[op_type](x, y.reshape(view))
        assert_close(found["z"], expected, bool_ if expected.dtype == np.bool_ else f32)


def test_older_operators_of_one_shape() -> None:
    m = model([node("Add x y -> z", axis=0)], {"x": f32["b", 3], "y": f32["b", 3]}, ["z"], opset=6)
    x = numbers(f32, 2, 3)
    (found,) = by_dovetail(m, {"x": x, "y": x})
    assert_close(found["z"], 2 * x, f32)


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [({}, (3,)), ({}, (2, 1)), ({"broadcast": 1, "axis": 1}, (3, 4)), ({"broadcast": 1}, (1, 2, 3))],
)
def test_older_broadcasts_that_do_not_fit(attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    m = model([node("Mul x y -> z", **attributes)], {"x": f32[2, 3], "y": f32[shape]}, ["z"], opset=6)
    with pytest.raises(LoadError, match=r"Mul: .*broadcast"):
        import_model(m)


def test_the_attributes_of_older_broadcasts_mean_nothing_later() -> None:
    m = model([node("Add x y -> z", broadcast=1)], {"x": f32[2], "y": f32[2]}, ["z"], opset=7)
    with pytest.raises(UnsupportedError, match="Add with the attribute 'broadcast'"):
        import_model(m)


@pytest.mark.slow
@pytest.mark.parametrize("second", [f32, f64, i32, i64], ids=str)
@pytest.mark.parametrize("first", [f32, f64, i32, i64], ids=str)
def test_powers_have_the_type_of_the_base(first: DType, second: DType) -> None:
    m = model(["Pow x y -> z"], {"x": first["n"], "y": second["n"]}, ["z"], opset=15)
    feed = {"x": np.array([1, 2, 3, 2, 5], first.numpy), "y": np.array([3, 5, 2, 0, 1], second.numpy)}
    assert_like_onnxruntime(m, feed)


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        (f32, np.array(2, np.int64), [4.0, 2.25]),
        (f16, np.array(3, np.int32), [8.0, 3.375]),
        (f32, np.array(0.5, np.float64), [math.sqrt(2), math.sqrt(1.5)]),
        (i32, np.array(2.0, np.float32), [4, 1]),
        (i32, np.array(0.5, np.float32), [1, 1]),
        (i64, np.array(3, np.int8), [8, 1]),
    ],
)
def test_powers_by_a_number_of_another_type(base: DType, exponent: Array, expected: list[float]) -> None:
    m = model(["Pow x e -> z"], {"x": base[2]}, ["z"], opset=15, initializers={"e": exponent})
    x = np.array([2.0, 1.5]).astype(base.numpy)
    (found,) = by_dovetail(m, {"x": x})
    assert_close(found["z"], np.array(expected), base)


def test_a_square_of_floats_is_a_product() -> None:
    """Exporters write the exponent as a float or as a whole number; both are what fusions look for."""
    forms = [
        model(["Pow x e -> z"], {"x": f32[2]}, ["z"], opset=15, initializers={"e": np.array(2, dtype)})
        for dtype in (np.float32, np.int64, np.float64)
    ]
    graphs: list[Graph] = [import_model(m) for m in forms]
    assert graphs[0].outputs["z"] is graphs[1].outputs["z"] is graphs[2].outputs["z"]


@pytest.mark.slow
def test_remainders() -> None:
    x, y = np.array([-4, 7, 5, 4, -7, 8], np.int32), np.array([2, -3, 8, -2, 3, 5], np.int32)
    for opset in (10, 13):
        for fmod in (0, 1):
            m = model([node("Mod x y -> z", fmod=fmod)], {"x": i32["n"], "y": i32["n"]}, ["z"], opset=opset)
            assert_like_onnxruntime(m, {"x": x, "y": y})
    m = model([node("Mod x y -> z", fmod=1)], {"x": f32["n"], "y": f32["n"]}, ["z"])
    assert_like_onnxruntime(m, {"x": (x / 1.7).astype(np.float32), "y": y.astype(np.float32)})
    m = model(["Mod x y -> z"], {"x": f32["n"], "y": f32["n"]}, ["z"], opset=28)
    (found,) = by_dovetail(m, {"x": np.array([-1.5, 1.5], np.float32), "y": np.array([1, -1], np.float32)})
    assert found["z"].tolist() == [0.5, -0.5]


@pytest.mark.slow
@pytest.mark.parametrize("opset", [6, 8, 13])
def test_of_many_tensors(opset: int) -> None:
    inputs = {name: f32["b", 3] for name in "wxyz"}
    nodes = [f"{op} w x y z -> {op}" for op in ("Sum", "Mean", "Max", "Min")]
    m = model(
        [*nodes, "Sum w -> one", "Max w -> alone"], inputs, ["Sum", "Mean", "Max", "Min", "one", "alone"], opset=opset
    )
    feed = {name: numbers(f32, 2, 3, seed=i) for i, name in enumerate("wxyz")}
    feed["x"][0, 0] = np.nan
    (found,) = by_dovetail(m, feed)
    stacked = np.stack([feed[n] for n in "wxyz"])
    assert_close(found["Sum"], stacked.sum(0), f32)
    assert_close(found["Mean"], stacked.mean(0), f32)
    assert_close(found["Max"], stacked.max(0), f32)
    assert_close(found["Min"], stacked.min(0), f32)
    assert_close(found["one"], feed["w"], f32)
    assert_close(found["alone"], feed["w"], f32)


def test_many_tensors_broadcast() -> None:
    m = model(["Mean x y w -> z"], {"x": f32["b", 1], "y": f32[3], "w": f32["a", 1, 1]}, ["z"], opset=13)
    feed = {"x": numbers(f32, 2, 1), "y": numbers(f32, 3), "w": numbers(f32, 4, 1, 1)}
    assert_like_onnxruntime(m, feed)


def test_no_tensors_at_all() -> None:
    with pytest.raises(LoadError, match="Sum: no inputs"):
        import_model(model([node("Sum -> y")], {}, ["y"]))


@pytest.mark.parametrize("opset", [6, 7, 10])
@pytest.mark.parametrize("attributes", [{}, {"min": -1.0}, {"max": 1.5}, {"min": 0.0, "max": 1.0}])
def test_clip_by_attributes(opset: int, attributes: dict[str, Any]) -> None:
    m = model([node("Clip x -> y", **attributes)], {"x": f32["n"]}, ["y"], opset=opset)
    x = np.array([-np.inf, -2.0, -0.5, np.nan, 0.5, 2.0, np.inf], np.float32)
    (found,) = by_dovetail(m, {"x": x})
    limits = {"min": -np.finfo(np.float32).max, "max": np.finfo(np.float32).max, **attributes}
    assert_close(found["y"], np.clip(x, limits["min"], limits["max"]), f32)


@pytest.mark.parametrize("dtype", [f32, f64, i8, i64, u8, u32], ids=str)
@pytest.mark.parametrize(
    "description", ["Clip x low high -> y", "Clip x _ high -> y", "Clip x low -> y", "Clip x -> y"]
)
def test_clip_by_inputs(dtype: DType, description: str) -> None:
    given = {name: dtype[()] for name in ("low", "high") if name in description}
    m = model([description], {"x": dtype["n"], **given}, ["y"], opset=13)
    x = np.array([0, 1, 3, 5, 9], dtype.numpy)
    # Where both cross, max wins.
    for low, high in ((2, 4), (4, 2)):
        bounds = {"low": np.array(low, dtype.numpy), "high": np.array(high, dtype.numpy)}
        assert_like_onnxruntime(m, {"x": x, **{k: v for k, v in bounds.items() if k in given}})


def test_a_bound_with_an_axis_of_size_1() -> None:
    m = model(["Clip x low -> y"], {"x": f32[()]}, ["y"], initializers={"low": np.array([0.5], np.float32)})
    (found,) = by_dovetail(m, {"x": np.array(-1.0, np.float32)})
    assert found["y"].shape == ()
    assert found["y"] == 0.5


def test_where_broadcasts_all_three() -> None:
    m = model(["Where c x y -> z"], {"c": bool_["b", 1, 1], "x": f32["s", 1], "y": f32[3]}, ["z"], opset=16)
    feeds = [{"c": numbers(bool_, b, 1, 1), "x": numbers(f32, s, 1), "y": numbers(f32, 3)} for b, s in ((2, 4), (3, 1))]
    assert_like_onnxruntime(m, *feeds)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_infinities_of_either_sign(flags: tuple[int, int]) -> None:
    made = node("IsInf x -> y", detect_negative=flags[0], detect_positive=flags[1])
    m = model([made], {"x": f32["n"]}, ["y"], opset=20)
    x = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)
    assert_like_onnxruntime(m, {"x": x})
    eight = model([made, "IsNaN x -> z"], {"x": f8e5m2["n"]}, ["y", "z"], opset=20)
    (found,) = by_dovetail(eight, {"x": x.astype(f8e5m2.numpy)})
    assert found["y"].tolist() == [False, bool(flags[1]), bool(flags[0]), False]
    assert found["z"].tolist() == [False, False, False, True]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan(dtype: DType) -> None:
    m = model(["IsNaN x -> y"], {"x": dtype["n"]}, ["y"])
    (found,) = by_dovetail(m, {"x": np.array([1.0, np.nan, np.inf]).astype(dtype.numpy)})
    assert found["y"].tolist() == [False, True, False]


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(direction: str) -> None:
    m = model([node("BitShift x y -> z", direction=direction)], {"x": u8["n", 1], "y": u8[4]}, ["z"], opset=11)
    assert_like_onnxruntime(m, {"x": np.array([[1], [77], [255]], np.uint8), "y": np.array([0, 1, 4, 7], np.uint8)})
    signed = model([node("BitShift x y -> z", direction=direction)], {"x": i8[4], "y": i8[4]}, ["z"], opset=28)
    (found,) = by_dovetail(signed, {"x": np.array([-1, -2, 5, -9], np.int8), "y": np.array([8, 1, -1, 1], np.int8)})
    assert found["z"].tolist() == ([0, -4, 0, -18] if direction == "LEFT" else [-1, -1, 0, -5])


def test_a_shift_in_no_direction() -> None:
    m = model([node("BitShift x y -> z", direction="UP")], {"x": u8[1], "y": u8[1]}, ["z"])
    with pytest.raises(LoadError, match="direction is 'UP'"):
        import_model(m)
    with pytest.raises(LoadError, match="without direction"):
        import_model(model(["BitShift x y -> z"], {"x": u8[1], "y": u8[1]}, ["z"]))


@pytest.mark.parametrize(("op_type", "expected"), [("And", [8, -12]), ("Or", [14, -1]), ("Xor", [6, 11])])
def test_bits(op_type: str, expected: list[int]) -> None:
    m = model([f"Bitwise{op_type} x y -> a", "BitwiseNot a -> z"], {"x": i32[2], "y": i32[2]}, ["a", "z"])
    (found,) = by_dovetail(m, {"x": np.array([12, -12], np.int32), "y": np.array([10, -1], np.int32)})
    assert found["a"].tolist() == expected
    assert found["z"].tolist() == [~e for e in expected]


def test_consumed_inputs_of_old_opsets_change_nothing() -> None:
    nodes = [
        node("Abs x -> a", consumed_inputs=[0]),
        node("Max a x -> b", consumed_inputs=[0, 0]),
        node("Clip b -> y", max=2.0, consumed_inputs=[0]),
    ]
    (found,) = by_dovetail(model(nodes, {"x": f32[3]}, ["y"], opset=5), {"x": np.array([-3, 1, np.nan], np.float32)})
    assert_close(found["y"], np.array([2, 1, np.nan]), f32)

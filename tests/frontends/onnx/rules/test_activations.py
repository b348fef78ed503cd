"""Activations: their attributes, numbers at the edges, older forms, and the fused ops that they are recognised as."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import DType, f16, f32, f64, i32, i64, u32
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node
from tests.tolerances import assert_close

CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("Relu", 6, {}),
    ("Relu", 14, {}),
    ("Sigmoid", 13, {}),
    ("Softplus", 1, {}),
    ("Softsign", 1, {}),
    ("HardSigmoid", 6, {}),
    ("HardSigmoid", 6, {"alpha": 0.5, "beta": 0.25}),
    ("HardSwish", 14, {}),
    ("Mish", 18, {}),
    ("Elu", 6, {}),
    ("Elu", 6, {"alpha": 2.5}),
    ("Celu", 12, {}),
    ("Celu", 12, {"alpha": 0.5}),
    ("Selu", 6, {}),
    ("Selu", 6, {"alpha": 2.0, "gamma": 3.0}),
    ("LeakyRelu", 6, {}),
    ("LeakyRelu", 16, {"alpha": 0.3}),
    ("ThresholdedRelu", 10, {}),
    ("ThresholdedRelu", 10, {"alpha": -0.5}),
    ("Shrink", 9, {}),
    ("Shrink", 9, {"bias": 0.25, "lambd": 1.0}),
    ("Gelu", 20, {}),
    ("Gelu", 20, {"approximate": "tanh"}),
]


@pytest.mark.parametrize(("op_type", "opset", "attributes"), CASES)
def test_like_onnxruntime_at_every_size(op_type: str, opset: int, attributes: dict[str, Any]) -> None:
    # Before opset 7 nothing is implemented there, and nothing has changed since.
    m = model([node(f"{op_type} x -> y", **attributes)], {"x": f32["b", "s"]}, ["y"], opset=max(opset, 7))
    random = np.random.default_rng(0)
    feeds = [{"x": random.normal(0, 2, shape).astype(np.float32)} for shape in ((2, 3), (1, 7), (4, 1))]
    assert_like_onnxruntime(m, *feeds)


@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Softplus", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "Mish"])
def test_numbers_at_the_edges(op_type: str) -> None:
    m = model([f"{op_type} x -> y"], {"x": f64["n"]}, ["y"], opset=18)
    x = np.array([-np.inf, -1e4, -0.0, 0.0, 1e4, np.inf, np.nan])
    (found,) = by_dovetail(m, {"x": x})
    expected = {
        "Relu": [0, 0, 0, 0, 1e4, np.inf],
        "Sigmoid": [0, 0, 0.5, 0.5, 1, 1],
        "Softplus": [0, 0, np.log(2), np.log(2), 1e4, np.inf],
        "Elu": [-1, -1, 0, 0, 1e4, np.inf],
        "Selu": [*[-1.0507010221481323 * 1.6732631921768188] * 2, 0, 0, 1e4 * 1.0507010221481323, np.inf],
        "LeakyRelu": [-np.inf, -1e4 * float(np.float32(0.01)), 0, 0, 1e4, np.inf],
        "HardSigmoid": [0, 0, 0.5, 0.5, 1, 1],
        "Mish": [np.nan, 0, 0, 0, 1e4, np.inf],
    }[op_type]
    assert_close(found["y"], np.array([*expected, np.nan]), f64)


@pytest.mark.parametrize("op_type", ["ThresholdedRelu", "Shrink"])
def test_what_is_not_a_number_is_not_above(op_type: str) -> None:
    m = model([f"{op_type} x -> y"], {"x": f32[3]}, ["y"], opset=10)
    (found,) = by_dovetail(m, {"x": np.array([np.nan, 3, -np.inf], np.float32)})
    assert found["y"].tolist() == [0.0, 3.0, -np.inf if op_type == "Shrink" else 0.0]


@pytest.mark.parametrize("dtype", [i32, i64, u32], ids=str)
def test_shrink_of_whole_numbers(dtype: DType) -> None:
    m = model([node("Shrink x -> y", lambd=1.5, bias=1.0)], {"x": dtype["n"]}, ["y"])
    numbers = [0, 1, 2, 5] if dtype is u32 else [-5, -2, -1, 0, 1, 2, 5]
    (found,) = by_dovetail(m, {"x": np.array(numbers, dtype.numpy)})
    assert found["y"].tolist() == [x + 1 if x < -1.5 else x - 1 if x > 1.5 else 0 for x in numbers]
    odd = model([node("Shrink x -> y", bias=0.5)], {"x": dtype["n"]}, ["y"])
    with pytest.raises(UnsupportedError, match=f"a bias of 0.5 on {dtype.name}"):
        import_model(odd)


@pytest.mark.parametrize("alpha", [1.0, 0.5, -2.0])
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_swish(dtype: DType, alpha: float) -> None:
    m = model([node("Swish x -> y", alpha=alpha)], {"x": dtype["n"]}, ["y"], opset=24)
    x = np.array([-3.0, -0.5, 0.0, 2.0]).astype(dtype.numpy)
    (found,) = by_dovetail(m, {"x": x})
    wide = x.astype(np.float64)
    assert_close(found["y"], wide / (1 + np.exp(-alpha * wide)), dtype)


def fusions(m: onnx.ModelProto) -> set[str]:
    return {found.rule for found in dovetail.explain(import_model(m)).fused}


@pytest.mark.parametrize(
    ("op_type", "attributes", "fused"),
    [("Swish", {}, "silu"), ("Gelu", {}, "gelu"), ("Gelu", {"approximate": "tanh"}, "gelu")],
)
def test_they_are_recognised(op_type: str, attributes: dict[str, Any], fused: str) -> None:
    assert fused in fusions(model([node(f"{op_type} x -> y", **attributes)], {"x": f32["n", 8]}, ["y"], opset=24))


def test_a_gelu_by_no_known_form() -> None:
    m = model([node("Gelu x -> y", approximate="cubic")], {"x": f32[2]}, ["y"], opset=20)
    with pytest.raises(LoadError, match="approximate is 'cubic'"):
        import_model(m)


SLOPES = [((), ()), ((1,), (1,)), ((3,), (3, 1, 1)), ((3, 4, 5), (3, 4, 5))]


def _bent(x: Array, slope: Array) -> Array:
    return np.where(x < 0, x * slope, x)


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize(("shape", "view"), SLOPES)
def test_older_slopes_belong_to_channels(shape: tuple[int, ...], view: tuple[int, ...], opset: int) -> None:
    m = model(["PRelu x slope -> y"], {"x": f32["b", 3, 4, 5], "slope": f32[shape]}, ["y"], opset=opset)
    random = np.random.default_rng(0)
    x, slope = random.normal(size=(2, 3, 4, 5)).astype(np.float32), random.normal(size=shape).astype(np.float32)
    (found,) = by_dovetail(m, {"x": x, "slope": slope})
    assert_close(found["y"], _bent(x, slope.reshape(view)), f32)


@pytest.mark.parametrize("opset", [7, 16])
def test_slopes_broadcast(opset: int) -> None:
    m = model(["PRelu x slope -> y"], {"x": f32["b", 3, 4], "slope": f32[3, 1]}, ["y"], opset=opset)
    random = np.random.default_rng(0)
    feeds = [
        {"x": random.normal(size=(b, 3, 4)).astype(np.float32), "slope": random.normal(size=(3, 1)).astype(np.float32)}
        for b in (2, 5)
    ]
    assert_like_onnxruntime(m, *feeds)


def test_slopes_of_whole_numbers() -> None:
    m = model(["PRelu x slope -> y"], {"x": i32[4], "slope": i32[1]}, ["y"], opset=16)
    (found,) = by_dovetail(m, {"x": np.array([-2, -1, 0, 3], np.int32), "slope": np.array([5], np.int32)})
    assert found["y"].tolist() == [-10, -5, 0, 3]


def test_the_first_selu_has_numbers_of_its_own() -> None:
    m = model([node("Selu x -> y", consumed_inputs=[0])], {"x": f32[2]}, ["y"], opset=1)
    (found,) = by_dovetail(m, {"x": np.array([2.0, -np.inf], np.float32)})
    assert_close(found["y"], np.array([2 * 1.0507, -1.0507 * 1.6732]), f32, scale=0.01)

"""Constant in all its forms, and Identity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32, i64
from tests.frontends.onnx.build import by_dovetail, model, node

FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"value": np.array([[1.5, 2.5]], np.float64)}, np.array([[1.5, 2.5]])),
    ({"value": np.array(True)}, np.array(True)),
    ({"value_float": 0.5}, np.array(0.5, np.float32)),
    ({"value_floats": [0.5, 1.0]}, np.array([0.5, 1.0], np.float32)),
    ({"value_int": 7}, np.array(7, np.int64)),
    ({"value_ints": [7, -8]}, np.array([7, -8], np.int64)),
]


@pytest.mark.parametrize(("attributes", "expected"), FORMS)
def test_every_form(attributes: dict[str, Any], expected: Any) -> None:
    (found,) = by_dovetail(model([node("Constant -> y", **attributes)], {}, ["y"], opset=13), {})
    assert found["y"].dtype == expected.dtype
    assert found["y"].shape == expected.shape
    assert found["y"].tolist() == expected.tolist()


def test_a_sparse_value() -> None:
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "v")
    indices = numpy_helper.from_array(np.array([1, 5], np.int64), "i")
    sparse = helper.make_sparse_tensor(values, indices, [2, 3])
    (found,) = by_dovetail(model([node("Constant -> y", sparse_value=sparse)], {}, ["y"], opset=11), {})
    assert found["y"].tolist() == [[0, 2, 0], [0, 0, 3]]


def test_large_ones_are_parameters_and_small_ones_are_not() -> None:
    weights = np.arange(1600, dtype=np.float32).reshape(40, 40)
    m = model(
        [
            node("Constant -> w", value=weights),
            node("Constant -> one", value_float=1.0),
            "Mul x w -> a",
            "Add a one -> y",
        ],
        {"x": f32["b", 40, 40]},
        ["y"],
    )
    graph = import_model(m)
    assert list(graph.params) == ["w"]
    assert np.array_equal(graph.params["w"], weights)


def test_a_large_one_of_one_number_is_that_number() -> None:
    zeros = np.zeros((40, 40), np.float32)
    m = model([node("Constant -> z", value=zeros), "Add x z -> y"], {"x": f32["b", 40, 40]}, ["y"])
    assert not import_model(m).params
    x = np.ones((2, 40, 40), np.float32)
    assert np.array_equal(by_dovetail(m, {"x": x})[0]["y"], x)


@pytest.mark.parametrize("attributes", [{"value_string": "a"}, {"value_strings": ["a"]}])
def test_strings_are_not_supported(attributes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="string"):
        import_model(model([node("Constant -> y", **attributes)], {}, ["y"], opset=13))


@pytest.mark.parametrize("attributes", [{}, {"value_int": 1, "value_float": 1.0}])
def test_one_value_and_no_more(attributes: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match=f"Constant: {len(attributes)} values"):
        import_model(model([node("Constant -> y", **attributes)], {}, ["y"], opset=13))


def test_identity_is_nothing() -> None:
    graph = import_model(model(["Identity x -> y"], {"x": i64["n"]}, ["y"]))
    assert graph.outputs["y"] is graph.inputs[0]

"""Optional values that are tensors, or left out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from dovetail.errors import UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32
from tests.frontends.onnx.build import by_dovetail, model, node

X = np.arange(3, dtype=np.float32)


def test_a_tensor_is_there() -> None:
    made = model(
        ["Optional x -> o", "OptionalHasElement o -> h", "OptionalGetElement o -> y"],
        {"x": f32["n"]},
        ["h", "y"],
        opset=18,
    )
    (got,) = by_dovetail(made, {"x": X})
    assert got["h"].shape == () and got["h"]
    np.testing.assert_array_equal(got["y"], X)


def test_what_is_left_out_is_not_there() -> None:
    made = model([node("OptionalHasElement -> h"), node("OptionalHasElement _ -> g")], {}, ["h", "g"], opset=18)
    (got,) = by_dovetail(made, {})
    assert not got["h"] and not got["g"]


def test_an_input_that_is_declared_as_optional_is_given() -> None:
    made = model(["OptionalGetElement x -> y"], {"x": f32["n"]}, ["y"], opset=18)
    plain = made.graph.input[0].type
    made.graph.input[0].type.CopyFrom(helper.make_optional_type_proto(plain))
    (got,) = by_dovetail(made, {"x": X})
    np.testing.assert_array_equal(got["y"], X)


def test_sequences_are_not_supported() -> None:
    made = model(["OptionalGetElement x -> y"], {"x": f32["n"]}, ["y"], opset=18)
    plain = helper.make_sequence_type_proto(made.graph.input[0].type)
    made.graph.input[0].type.CopyFrom(helper.make_optional_type_proto(plain))
    with pytest.raises(UnsupportedError, match="sequence"):
        import_model(made)


def test_an_empty_optional_is_not_supported() -> None:
    kind = onnx.helper.make_tensor_type_proto(1, [2])
    made = model([node("Optional -> o", type=kind), "OptionalHasElement o -> h"], {}, ["h"], opset=18)
    with pytest.raises(UnsupportedError, match="Optional"):
        import_model(made)

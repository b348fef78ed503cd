"""Quantised operators: every way to give scales and zero points, every opset, symbolic sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dovetail.dtypes import f16, f32, i8, i32, u8
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node
from tests.frontends.onnx.microsoft import Draw

DRAW = Draw(11)
ONE = TensorType(f32, ())


def _number(x: float, dtype: Any = np.float32) -> Array:
    return np.array(x, dtype)


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_one_scale_in_every_opset(opset: int, dtype: Any) -> None:
    constants = {"s": _number(0.5), "z": _number(3, dtype)}
    made = model(
        ["QuantizeLinear x s z -> q", "DequantizeLinear q s z -> y"],
        {"x": f32["b", 3]},
        ["q", "y"],
        opset=opset,
        initializers=constants,
    )
    # Halves of the scale are ties, and the largest numbers saturate.
    ties = np.array([[0.25, 0.75, -0.25], [1.25, 1e6, -1e6]], np.float32)
    assert_like_onnxruntime(made, {"x": ties}, {"x": DRAW.floats(5, 3) * 10})


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [13, 21])
def test_scales_along_an_axis(axis: int, opset: int) -> None:
    size = (3, 4, 5)[axis]
    constants = {"s": DRAW.steps(size), "z": DRAW.whole(size, dtype=np.int8)}
    made = model(
        [node("QuantizeLinear x s z -> q", axis=axis), node("DequantizeLinear q s z -> y", axis=axis)],
        {"x": f32[3, 4, 5]},
        ["q", "y"],
        opset=opset,
        initializers=constants,
    )
    assert_like_onnxruntime(made, {"x": DRAW.floats(3, 4, 5)})


def test_a_scale_of_one_element_is_a_number() -> None:
    constants = {"s": np.array([0.1], np.float32), "z": np.array([7], np.uint8)}
    made = model(["QuantizeLinear x s z -> y"], {"x": f32["b", 3]}, ["y"], initializers=constants)
    (got,) = by_dovetail(made, {"x": np.array([[0.0, 0.1, -1.0]], np.float32)})
    assert got["y"].tolist() == [[7, 8, 0]]


def test_without_a_zero_point_the_result_is_u8() -> None:
    made = model(["QuantizeLinear x s -> y"], {"x": f32["b"], "s": ONE}, ["y"])
    assert_like_onnxruntime(made, {"x": DRAW.floats(9), "s": _number(0.01)})


@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_of_numbers_of_four_bits(kind: Any, axis: int) -> None:
    shape = (3, 6) if axis else (6, 3)
    constants = {"s": DRAW.steps(3, 3) * 10, "z": DRAW.whole(3, 3, low=0, high=3).astype(kind)}
    made = model(
        [
            node("QuantizeLinear x s z -> q", axis=axis, block_size=2),
            node("DequantizeLinear q s z -> y", axis=axis, block_size=2),
        ],
        {"x": f32[shape]},
        ["y"],
        initializers=constants,
    )
    assert_like_onnxruntime(made, {"x": DRAW.floats(*shape)})


def test_the_last_block_may_be_shorter() -> None:
    constants = {"s": np.array([[1.0, 2.0, 4.0]], np.float32)}
    made = model([node("DequantizeLinear x s -> y", block_size=2)], {"x": i8[1, 5]}, ["y"], initializers=constants)
    (got,) = by_dovetail(made, {"x": np.array([[1, 1, 1, 1, 1]], np.int8)})
    assert got["y"].tolist() == [[1.0, 1.0, 2.0, 2.0, 4.0]]


def test_floats_of_eight_bits_saturate_or_overflow() -> None:
    x = np.array([1.0, 1e4, -1e4], np.float32)
    for saturate, expected in ((1, [1.0, 448.0, -448.0]), (0, [1.0, np.nan, np.nan])):
        constants = {"s": _number(1.0), "z": _number(0, ml_dtypes.float8_e4m3fn)}
        made = model(
            [node("QuantizeLinear x s z -> q", saturate=saturate), "DequantizeLinear q s z -> y"],
            {"x": f32[3]},
            ["y"],
            initializers=constants,
        )
        (got,) = by_dovetail(made, {"x": x})
        np.testing.assert_array_equal(got["y"], np.array(expected, np.float32))
        assert_like_onnxruntime(made, {"x": x})


def test_precision_says_in_which_type_is_divided() -> None:
    x, scale = np.array([2.552734375], np.float16), np.array(0.01383209228515625, np.float16)
    in_f32 = float(np.rint(x.astype(np.float32) / scale.astype(np.float32))[0])
    in_f16 = float(np.rint(x / scale)[0])
    assert in_f32 != in_f16
    for precision, expected in ((1, in_f32), (10, in_f16)):
        made = model(
            [node("QuantizeLinear x s -> y", precision=precision)],
            {"x": f16[1], "s": TensorType(f16, ())},
            ["y"],
            opset=23,
        )
        (got,) = by_dovetail(made, {"x": x, "s": scale})
        assert got["y"].tolist() == [expected]


@pytest.mark.slow
def test_whole_numbers_are_quantised_and_dequantised() -> None:
    made = model(["QuantizeLinear x s -> y"], {"x": i32["b"]}, ["y"], opset=13, initializers={"s": _number(3.0)})
    (got,) = by_dovetail(made, {"x": np.array([0, 4, 5, 800], np.int32)})
    assert got["y"].tolist() == [0, 1, 2, 255]
    back = model(["DequantizeLinear x s -> y"], {"x": i32["b"]}, ["y"], opset=13, initializers={"s": _number(0.5)})
    assert_like_onnxruntime(back, {"x": np.array([-7, 123456], np.int32)})


@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0])
def test_dynamic_quantisation_by_the_range(shift: float) -> None:
    made = model(["DynamicQuantizeLinear x -> y s z"], {"x": f32["b", 3]}, ["y", "s", "z"])
    assert_like_onnxruntime(made, {"x": DRAW.floats(4, 3) + np.float32(shift)}, {"x": DRAW.floats(1, 3)})


def test_dynamic_quantisation_of_zeros() -> None:
    made = model(["DynamicQuantizeLinear x -> y s z"], {"x": f32["b", 3]}, ["y", "s", "z"])
    assert_like_onnxruntime(made, {"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("kind", [u8, i8])
def test_products_of_whole_numbers(kind: Any) -> None:
    draw = kind.numpy.type
    constants = {"y": DRAW.whole(5, 4, dtype=draw), "xz": _number(5, draw), "yz": DRAW.whole(4, dtype=draw)}
    made = model(["MatMulInteger x y xz yz -> z"], {"x": kind["b", 3, 5]}, ["z"], initializers=constants)
    assert_like_onnxruntime(made, {"x": DRAW.whole(2, 3, 5, dtype=draw)}, {"x": DRAW.whole(1, 3, 5, dtype=draw)})


@pytest.mark.slow
def test_a_vector_and_a_zero_point_for_each_row() -> None:
    made = model(["MatMulInteger x y -> z"], {"x": u8[5], "y": u8[5, 4]}, ["z"])
    x, y = DRAW.whole(5), DRAW.whole(5, 4)
    assert by_dovetail(made, {"x": x, "y": y})[0]["z"].tolist() == (x.astype(np.int32) @ y.astype(np.int32)).tolist()
    rows = model(["MatMulInteger x y xz -> z"], {"x": u8[3, 5], "y": u8[5, 4], "xz": u8[3]}, ["z"])
    wide, zero = DRAW.whole(3, 5), DRAW.whole(3)
    expected = (wide.astype(np.int32) - zero[:, None].astype(np.int32)) @ y.astype(np.int32)
    assert by_dovetail(rows, {"x": wide, "y": y, "xz": zero})[0]["z"].tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [u8, i8])
def test_a_quantised_product(kind: Any) -> None:
    draw = kind.numpy.type
    constants = {
        "s": _number(0.05),
        "z": _number(9, draw),
        "b": DRAW.whole(5, 4, dtype=draw),
        "bs": DRAW.steps(4),
        "bz": DRAW.whole(4, dtype=draw),
        "t": _number(0.3),
        "u": _number(50, draw),
    }
    made = model(["QLinearMatMul a s z b bs bz t u -> y"], {"a": kind["b", 3, 5]}, ["y"], initializers=constants)
    assert_like_onnxruntime(made, {"a": DRAW.whole(2, 3, 5, dtype=draw)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [
        {"pads": [1, 0, 1, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 1]},
        {"auto_pad": "SAME_LOWER"},
        {"dilations": [2, 1]},
    ],
)
def test_convolutions_of_whole_numbers(window: dict[str, Any]) -> None:
    image = DRAW.whole(1, 4, 6, 7)
    weights = {"w": DRAW.whole(6, 2, 3, 2), "xz": _number(100, np.uint8), "wz": _number(3, np.uint8)}
    plain = model(
        [node("ConvInteger x w xz wz -> y", group=2, **window)], {"x": u8["b", 4, 6, 7]}, ["y"], initializers=weights
    )
    assert_like_onnxruntime(plain, {"x": image}, {"x": DRAW.whole(2, 4, 6, 7)})
    constants = {
        "s": _number(0.05),
        "z": _number(100, np.uint8),
        "w": DRAW.weights(6, 2, 3, 2),
        "ws": DRAW.steps(6),
        "wz": np.zeros(6, np.int8),
        "t": _number(0.4),
        "u": _number(120, np.uint8),
        "b": DRAW.whole(6, dtype=np.int32, low=-999, high=999),
    }
    scaled = model(
        [node("QLinearConv x s z w ws wz t u b -> y", group=2, **window)],
        {"x": u8["b", 4, 6, 7]},
        ["y"],
        initializers=constants,
    )
    assert_like_onnxruntime(scaled, {"x": image})


def test_what_does_not_fit_is_refused() -> None:
    made = model([node("QuantizeLinear x s -> y", axis=5)], {"x": f32[2, 3], "s": f32[3]}, ["y"])
    with pytest.raises(LoadError, match="axis 5"):
        import_model(made)
    made = model([node("DequantizeLinear x s -> y", block_size=2)], {"x": i8[2, 4], "s": f32[4]}, ["y"])
    with pytest.raises(LoadError, match="blocks of 2"):
        import_model(made)
    names = "a s z b t w u v"
    types = {"a": u8[2, 3], "b": u8[3, 4], "s": ONE, "t": ONE, "z": u8[1], "w": u8[1], "u": f32[2], "v": u8[2]}
    with pytest.raises(UnsupportedError, match="quantised by"):
        import_model(model([f"QLinearMatMul {names} -> y"], types, ["y"]))

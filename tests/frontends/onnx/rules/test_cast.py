"""Cast, CastLike and BitCast: narrow types, saturation, rounding, older forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dovetail import ops
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.frontends.onnx.file.types import NUMBERS
from dovetail.ir.dtype import (
    NARROW,
    DType,
    bf16,
    bool_,
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    i64,
    u2,
    u4,
    u8,
)
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, by_onnxruntime, model, node

EIGHTS = [f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz]


def cast(source: DType, target: DType, *, opset: int = 25, **attributes: Any) -> onnx.ModelProto:
    return model([node("Cast x -> y", to=NUMBERS[target], **attributes)], {"x": source["n"]}, ["y"], opset=opset)


def one(m: onnx.ModelProto, x: Array) -> Array:
    (found,) = by_dovetail(m, {"x": x})
    return found["y"]


@pytest.mark.parametrize("source", [bool_, i8, i32, i64, f16, f32, f64], ids=str)
@pytest.mark.parametrize("target", [bool_, i8, u8, i32, i64, f16, bf16, f32, f64], ids=str)
def test_within_range_like_onnxruntime(source: DType, target: DType) -> None:
    m = model(
        [node("Cast x -> a", to=NUMBERS[target]), node("Cast a -> y", to=TensorProto.FLOAT)],
        {"x": source["n", 2]},
        ["y"],
        opset=13,
    )
    feeds = [{"x": np.array([[0, 1], [3, 7]] * n).astype(source.numpy)} for n in (1, 2)]
    assert_like_onnxruntime(m, *feeds)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("target", EIGHTS, ids=str)
@pytest.mark.parametrize("source", [f16, f32], ids=str)
def test_floats_of_8_bits_like_onnxruntime(source: DType, target: DType, saturate: int) -> None:
    """onnxruntime gives no such arrays out, so it is asked for what they are in f32."""
    cast = node("Cast x -> a", to=NUMBERS[target], saturate=saturate)
    m = model([cast, node("Cast a -> y", to=TensorProto.FLOAT)], {"x": source["n"]}, ["y"], opset=19)
    random = np.random.default_rng(0)
    x = np.concatenate([random.normal(0, 100, 200), [0.0, -0.0, np.nan, np.inf, -np.inf, 6e4, -6e4, 1e-7]])
    feed = {"x": x.astype(source.numpy)}
    (found,), expected = by_dovetail(m, feed), by_onnxruntime(m, feed)["y"]
    np.testing.assert_array_equal(found["y"], expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_inputs_and_outputs(dtype: DType) -> None:
    codes = np.arange(2**dtype.bits, dtype=np.uint8)
    m = model(["Identity x -> y"], {"x": dtype["n"]}, ["y"], opset=25)
    assert one(m, codes.view(dtype.numpy)).view(np.uint8).tolist() == codes.tolist()
    wide = one(cast(dtype, f32), codes.view(dtype.numpy))
    assert wide.dtype == np.float32
    back = one(cast(f32, dtype), wide)
    number = np.isfinite(wide)
    assert back.view(np.uint8)[number].tolist() == codes[number].tolist()


@pytest.mark.parametrize("dtype", [i4, u4, f4e2m1, u2, f8e4m3fn], ids=str)
def test_narrow_initializers(dtype: DType) -> None:
    weights = np.arange(2**dtype.bits, dtype=np.uint8)[:15].view(dtype.numpy)
    m = model(
        [node("Gather w i -> a"), node("Cast a -> y", to=TensorProto.FLOAT)],
        {"i": i64["n"]},
        ["y"],
        initializers={"w": weights},
        opset=25,
    )
    (found,) = by_dovetail(m, {"i": np.array([2, 0, 3])})
    assert found["y"].tolist() == weights[[2, 0, 3]].astype(np.float32).tolist()


@pytest.mark.slow
def test_whole_numbers_of_4_bits_wrap_whatever_they_come_from() -> None:
    x = [-9, -1, 0, 7, 8, 15, 16]
    for source in (f32, f16, i8, i64):
        assert one(cast(source, i4), np.array(x, source.numpy)).tolist() == [7, -1, 0, 7, -8, -1, 0]
        assert one(cast(source, u4), np.array(x, source.numpy)).tolist() == [7, 15, 0, 7, 8, 15, 0]


@pytest.mark.parametrize(
    ("mode", "saturate", "expected"),
    [
        ("up", 1, [2.0, 2.0, 2.0**-127, 2.0**127]),
        ("down", 1, [1.0, 1.0, 2.0**-127, 2.0**127]),
        ("nearest", 1, [1.0, 2.0, 2.0**-127, 2.0**127]),
        ("nearest", 0, [1.0, 2.0, math.nan, math.nan]),
        ("up", 0, [2.0, 2.0, math.nan, math.nan]),
    ],
)
def test_powers_of_two_are_rounded_as_asked(mode: str, saturate: int, expected: list[float]) -> None:
    m = cast(f32, f8e8m0, round_mode=mode, saturate=saturate)
    found = one(m, np.array([1.25, 1.5, 0.0, np.inf], np.float32)).astype(np.float64)
    np.testing.assert_array_equal(found, expected)


def test_attributes_that_matter_to_no_narrow_type_change_nothing() -> None:
    m = cast(f32, i32, saturate=0, round_mode="down")
    assert import_model(m).outputs["y"].op is ops.cast
    assert one(m, np.array([1.9, -1.9], np.float32)).tolist() == [1, -1]
    assert one(cast(f32, f4e2m1, saturate=0), np.array([9.0], np.float32)).astype(float).tolist() == [6.0]


def test_rounding_in_no_known_way() -> None:
    with pytest.raises(LoadError, match="round_mode is 'sideways'"):
        import_model(cast(f32, f8e8m0, round_mode="sideways"))


@pytest.mark.parametrize("target", [f16, i32, f8e4m3fn, bool_], ids=str)
def test_cast_like(target: DType) -> None:
    m = model(["CastLike x t -> y"], {"x": f32["n"], "t": target["m"]}, ["y"], opset=19)
    (found,) = by_dovetail(m, {"x": np.array([0.0, 1000.0], np.float32), "t": np.ones(3, target.numpy)})
    largest = 448.0 if target is f8e4m3fn else 1.0 if target is bool_ else 1000.0
    assert found["y"].dtype == target.numpy
    assert found["y"].astype(float).tolist() == [0.0, largest]


def test_cast_like_without_saturation() -> None:
    nodes = [node("CastLike x t -> y", saturate=0)]
    m = model(nodes, {"x": f32[1], "t": f8e5m2[1]}, ["y"], opset=19)
    (found,) = by_dovetail(m, {"x": np.array([1e9], np.float32), "t": np.ones(1, f8e5m2.numpy)})
    assert math.isinf(float(found["y"][0]))


def test_the_first_cast_names_its_type() -> None:
    m = model([node("Cast x -> y", to="INT32")], {"x": f32[2]}, ["y"], opset=1)
    assert one(m, np.array([1.5, -2.5], np.float32)).tolist() == [1, -2]
    for name in ("INTEGER", "UNDEFINED"):
        with pytest.raises(LoadError, match="an element type of number 0"):
            import_model(model([node("Cast x -> y", to=name)], {"x": f32[2]}, ["y"], opset=1))


def test_types_that_are_not_there() -> None:
    for number in (TensorProto.STRING, TensorProto.COMPLEX128, TensorProto.FLOAT6E2M3):
        m = model([node("Cast x -> y", to=number)], {"x": f32[2]}, ["y"], opset=25)
        with pytest.raises(UnsupportedError, match="tensors of"):
            import_model(m)
    with pytest.raises(LoadError, match="an element type of number 999"):
        import_model(model([node("Cast x -> y", to=999)], {"x": f32[2]}, ["y"]))
    with pytest.raises(LoadError, match="Cast without to"):
        import_model(model([node("Cast x -> y")], {"x": f32[2]}, ["y"]))


def test_a_cast_to_its_own_type_is_nothing() -> None:
    graph = import_model(cast(f32, f32))
    assert graph.outputs["y"] is graph.inputs[0]


def test_infinity_is_out_of_range_even_in_its_own_type() -> None:
    x = np.array([np.inf, -np.inf, 1.0]).astype(f8e5m2.numpy)
    assert one(cast(f8e5m2, f8e5m2), x).astype(float).tolist() == [57344.0, -57344.0, 1.0]
    assert one(cast(f8e5m2, f8e5m2, saturate=0), x).astype(float).tolist() == [np.inf, -np.inf, 1.0]


def test_bits_as_another_type() -> None:
    m = model([node("BitCast x -> y", to=TensorProto.INT32)], {"x": f32["b", 2]}, ["y"], opset=26)
    x = np.array([[1.0, -0.0], [np.nan, 3.5]], np.float32)
    feeds = [{"x": x}, {"x": x[:1]}]
    for feed, found in zip(feeds, by_dovetail(m, *feeds), strict=True):
        assert found["y"].tolist() == feed["x"].view(np.int32).tolist()
    halves = model([node("BitCast x -> y", to=TensorProto.FLOAT16)], {"x": bf16["n"]}, ["y"], opset=26)
    half = np.array([1.0, -2.0], bf16.numpy)
    assert one(halves, half).tobytes() == half.tobytes()


@pytest.mark.parametrize("target", [i64, i16, u4], ids=str)
def test_bits_of_another_width(target: DType) -> None:
    m = model([node("BitCast x -> y", to=NUMBERS[target])], {"x": f32[2]}, ["y"], opset=26)
    with pytest.raises(LoadError, match=f"the bits of f32 as {target.name}"):
        import_model(m)

"""Pools as onnxruntime has them: one compile for every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f16, f32, i64, u8
from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node

random = np.random.default_rng(11)
SPATIAL = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
SIZES = {1: [(9,), (12,), (13,)], 2: [(9, 7), (8, 12), (11, 10)], 3: [(5, 6, 7), (6, 7, 5)]}


def _floats(*shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def _check(op: str, axes: int = 2, *, opset: int = 22, outputs: str = "y", **attributes: Any) -> None:
    made = model(
        [node(f"{op} x -> {outputs}", **attributes)],
        {"x": f32["n", 3, *SPATIAL[axes]]},
        outputs.split(),
        opset=opset,
    )
    assert_like_onnxruntime(made, *({"x": _floats(2, 3, *size)} for size in SIZES[axes]))


POOLS: list[tuple[str, dict[str, Any]]] = [
    ("MaxPool", {}),
    ("AveragePool", {}),
    ("AveragePool", {"count_include_pad": 1}),
    ("LpPool", {"p": 3}),
]


@pytest.mark.slow
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(("op", "more"), POOLS)
def test_windows(op: str, more: dict[str, Any], axes: int) -> None:
    window: dict[str, Any] = {"kernel_shape": [3, 2, 4][:axes], **more}
    _check(op, axes, **window)
    _check(op, axes, strides=[2, 1, 3][:axes], pads=[1, 0, 2][:axes] + [2, 1, 0][:axes], **window)
    _check(op, axes, opset=7, strides=[2] * axes, pads=[1] * 2 * axes, **window)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "more"), POOLS)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_padding_that_follows_from_the_size(op: str, more: dict[str, Any], auto_pad: str) -> None:
    steps = ((3, 1), (2, 2), (3, 2), (2, 3))
    for size, stride in steps[:3] if op == "MaxPool" else steps:  # onnxruntime refuses the last of the largest
        _check(op, kernel_shape=[size, 3], strides=[stride, 1], auto_pad=auto_pad, **more)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "more"), POOLS)
def test_ceil_mode(op: str, more: dict[str, Any]) -> None:
    for size, stride, pads in ((3, 2, [0, 0]), (3, 2, [1, 1]), (2, 3, [1, 0]), (3, 4, [1, 1]), (4, 3, [1, 2])):
        _check(op, 1, kernel_shape=[size], strides=[stride], pads=pads, ceil_mode=1, **more)


@pytest.mark.parametrize(("op", "more"), POOLS)
def test_dilations(op: str, more: dict[str, Any]) -> None:
    _check(op, kernel_shape=[2, 3], dilations=[3, 2], pads=[1, 1, 1, 0], strides=[1, 2], **more)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("storage_order", [0, 1])
def test_indices(axes: int, storage_order: int) -> None:
    window: dict[str, Any] = {"kernel_shape": [2] * axes, "strides": [2] * axes, "pads": [1] * 2 * axes, "ceil_mode": 1}
    _check("MaxPool", axes, outputs="y i", storage_order=storage_order, **window)


def test_indices_of_the_first_opsets() -> None:
    _check("MaxPool", opset=8, outputs="y i", kernel_shape=[3, 3])


def test_largest_of_bytes() -> None:
    made = model([node("MaxPool x -> y", kernel_shape=[2], pads=[1, 1])], {"x": u8[1, 1, "n"]}, ["y"], opset=12)
    assert_like_onnxruntime(made, {"x": np.array([[[0, 3, 2, 255]]], np.uint8)})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_whole_channels(op: str, axes: int) -> None:
    _check(op, axes, opset=7)
    if op == "GlobalLpPool":
        _check(op, axes, opset=21, p=1)
        _check(op, axes, opset=21, p=3)


def test_powers_of_half_precision_do_not_overflow() -> None:
    made = model(["GlobalLpPool x -> y"], {"x": f16[1, 1, "n"]}, ["y"])
    (got,) = by_dovetail(made, {"x": np.array([[[300.0, 400.0]]], np.float16)})
    assert got["y"].tolist() == [[[500.0]]]


def _unpool(x: TensorType, **attributes: Any) -> Any:
    nodes = [node("MaxPool x -> p i", kernel_shape=[2, 3], strides=[2, 3]), node("MaxUnpool p i -> y", **attributes)]
    return model(nodes, {"x": x}, ["y"], opset=11)


@pytest.mark.slow
def test_what_a_pool_took_is_put_back() -> None:
    window = {"kernel_shape": [2, 3], "strides": [2, 3]}
    feeds = [{"x": _floats(2, 3, 4, 6)}, {"x": _floats(1, 3, 6, 9)}]
    assert_like_onnxruntime(_unpool(f32["n", 3, 4, 6], **window), feeds[0])
    assert_like_onnxruntime(_unpool(f32["n", 3, "h", "w"], **window), *feeds)


def test_unpooled_to_a_shape() -> None:
    made = model(
        [node("MaxUnpool x i s -> y", kernel_shape=[2, 2], strides=[2, 2])],
        {"x": f32[1, 1, 2, 2], "i": i64[1, 1, 2, 2]},
        ["y"],
        opset=11,
        initializers={"s": np.array([1, 1, 5, 4])},
    )
    feed = {"x": _floats(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]])}
    assert_like_onnxruntime(made, feed)
    made.graph.initializer[0].CopyFrom(
        model([], {}, [], initializers={"s": np.array([1, 1, 4, 5])}).graph.initializer[0]
    )
    with pytest.raises(UnsupportedError, match=r"output_shape \[1, 1, 4, 5\], where \[1, 1, 4, 4\]"):
        import_model(made)


def test_what_does_not_fit_is_refused() -> None:
    def pool(op: str, x: TensorType = f32[1, 1, 9], **attributes: Any) -> None:
        import_model(model([node(f"{op} x -> y", **attributes)], {"x": x}, ["y"]))

    with pytest.raises(LoadError, match="kernel_shape"):
        pool("MaxPool")
    with pytest.raises(LoadError, match="a window of 2 axes"):
        pool("MaxPool", kernel_shape=[2, 2])
    with pytest.raises(LoadError, match="it takes"):
        pool("GlobalMaxPool", f32[2, 3])
    with pytest.raises(UnsupportedError, match="ceil_mode with auto_pad VALID"):
        pool("AveragePool", kernel_shape=[2], strides=[2], auto_pad="VALID", ceil_mode=1)

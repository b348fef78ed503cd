"""Convolutions as onnxruntime has them: one compile for every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from dovetail.errors import LoadError, TypeRuleError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f16, f32
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node
from tests.tolerances import assert_close

random = np.random.default_rng(7)


def _floats(*shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


SPATIAL = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
SIZES = {1: [(9,), (12,), (13,)], 2: [(9, 7), (8, 12), (11, 10)], 3: [(5, 6, 7), (6, 5, 4)]}


def _check(op: str, w: Array, *, opset: int = 21, bias: int = 0, channels: int = 4, **attributes: Any) -> None:
    axes = w.ndim - 2
    initializers = {"w": w, **({"b": _floats(bias)} if bias else {})}
    made = model(
        [node(f"{op} x w{' b' if bias else ''} -> y", **attributes)],
        {"x": f32["n", channels, *SPATIAL[axes]]},
        ["y"],
        opset=opset,
        initializers=initializers,
    )
    assert_like_onnxruntime(made, *({"x": _floats(2, channels, *size)} for size in SIZES[axes]))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("stride", "size"), [(1, 3), (2, 3), (2, 2), (3, 2), (2, 1), (1, 4), (5, 3)])
def test_padding_that_follows_from_the_size(auto_pad: str, stride: int, size: int) -> None:
    _check("Conv", _floats(3, 4, size, 3), auto_pad=auto_pad, strides=[stride, 1])


@pytest.mark.slow
@pytest.mark.parametrize(("auto_pad", "pads"), [("SAME_UPPER", [1, 2]), ("SAME_LOWER", [2, 1])])
def test_padding_follows_from_dilations_too(auto_pad: str, pads: list[int]) -> None:
    def padded(**attributes: Any) -> Array:
        nodes = [node("Conv x w -> y", dilations=[3], **attributes)]
        made = model(nodes, {"x": f32[1, 2, "n"]}, ["y"], initializers={"w": np.ones((1, 2, 2), np.float32)})
        (result,) = by_dovetail(made, {"x": np.arange(16, dtype=np.float32).reshape(1, 2, 8)})
        return result["y"]

    assert padded(auto_pad=auto_pad).tolist() == padded(pads=pads).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("opset", [6, 11, 22])
def test_spatial_axes(axes: int, opset: int) -> None:
    shape = (3, 2, 3)[:axes]
    pads = [1, 0, 2][:axes] + [0, 1, 1][:axes]
    _check("Conv", _floats(6, 2, *shape), opset=opset, bias=6, group=2, pads=pads, kernel_shape=list(shape))
    _check("Conv", _floats(5, 4, *shape), opset=opset, strides=[2] * axes, dilations=[1, 2, 1][:axes])


def test_one_group_for_each_channel() -> None:
    _check("Conv", _floats(8, 1, 3, 3), bias=8, group=4, pads=[1, 1, 1, 1])


@pytest.mark.slow
def test_sizes_behind_padding_stay_simple() -> None:
    nodes = [node(f"Conv v{i} w -> v{i + 1}", auto_pad="SAME_UPPER", strides=[2]) for i in range(6)]
    made = model(nodes, {"v0": f32[1, 2, "n"]}, ["v6"], initializers={"w": _floats(2, 2, 3)})
    assert_like_onnxruntime(made, *({"v0": _floats(1, 2, n)} for n in (64, 65, 127, 200)))
    assert len(str(import_model(made).outputs["v6"].shape[-1])) < 120


@pytest.mark.slow
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("opset", [6, 11, 22])
def test_transposed(axes: int, opset: int) -> None:
    shape = (3, 2, 4)[:axes]
    pads = [1, 0, 2][:axes] + [0, 1, 1][:axes]
    more: dict[str, Any] = {"strides": [3, 2, 2][:axes], "output_padding": [2, 1, 0][:axes]}
    _check("ConvTranspose", _floats(4, 3, *shape), opset=opset, bias=6, group=2, pads=pads, **more)
    _check("ConvTranspose", _floats(4, 3, *shape), opset=opset, dilations=[2, 1, 2][:axes], kernel_shape=list(shape))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("stride", "size", "more"), [(1, 3, 0), (2, 3, 0), (2, 4, 1), (3, 2, 2), (2, 5, 1)])
def test_transposed_padding_that_follows_from_the_size(auto_pad: str, stride: int, size: int, more: int) -> None:
    _check("ConvTranspose", _floats(4, 2, size), auto_pad=auto_pad, strides=[stride], output_padding=[more])


def test_transposed_by_more_than_the_window_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="reaches less far"):
        _check("ConvTranspose", _floats(4, 2, 2), auto_pad="SAME_UPPER", strides=[3])


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("output_shape", [5, 6, 7, 8, 9])
def test_transposed_to_a_shape(auto_pad: str, output_shape: int) -> None:
    made = model(
        [node("ConvTranspose x w -> y", strides=[2], output_shape=[output_shape], auto_pad=auto_pad)],
        {"x": f32["n", 4, 3]},
        ["y"],
        initializers={"w": _floats(4, 2, 4)},
    )
    assert_like_onnxruntime(made, {"x": _floats(1, 4, 3)}, {"x": _floats(2, 4, 3)})


def test_transposed_to_a_shape_from_sizes_of_the_run() -> None:
    made = model(
        [node("ConvTranspose x w -> y", strides=[2], output_shape=[10])],
        {"x": f32["n", 4, "s"]},
        ["y"],
        initializers={"w": _floats(4, 2, 4)},
    )
    assert_like_onnxruntime(made, {"x": _floats(1, 4, 4)}, {"x": _floats(1, 4, 5)})


@pytest.mark.slow
@pytest.mark.parametrize("with_mask", [False, True])
def test_deformed(with_mask: bool) -> None:
    groups: dict[str, Any] = {
        "group": 2,
        "offset_group": 2,
        "pads": [1, 0, 1, 0],
        "strides": [2, 1],
        "dilations": [1, 2],
    }
    made = model(
        [node(f"DeformConv x w o b {'m' if with_mask else '_'} -> y", **groups)],
        {"x": f32["n", 4, "h", 7], "o": f32["n", 24, "p", "q"], **({"m": f32["n", 12, "p", "q"]} if with_mask else {})},
        ["y"],
        opset=19,
        initializers={"w": _floats(2, 2, 3, 2), "b": _floats(2)},
    )
    feeds: list[dict[str, Array]] = []
    for n, h in ((1, 6), (2, 5)):
        places = ((h + 2 - 3) // 2 + 1, 7 - 2)
        feed = {"x": _floats(n, 4, h, 7), "o": _floats(n, 24, *places) * 2}
        feeds.append({**feed, **({"m": _floats(n, 12, *places)} if with_mask else {})})
    for feed, got in zip(feeds, by_dovetail(made, *feeds), strict=True):
        reference: Any = ReferenceEvaluator(made)  # its results have no type
        (expected,) = reference.run(None, feed)
        assert_close(got["y"], np.asarray(expected, np.float32), f32, scale=8)


def test_offsets_of_nothing_deform_nothing() -> None:
    x, w = _floats(1, 2, 5, 6), _floats(3, 2, 3, 3)
    types = {"x": f32[1, 2, 5, 6], "o": f32[1, 18, 3, 4]}
    deformed = model(["DeformConv x w o -> y"], types, ["y"], opset=22, initializers={"w": w})
    plain = model(["Conv x w -> y"], {"x": types["x"]}, ["y"], opset=22, initializers={"w": w})
    (got,) = by_dovetail(deformed, {"x": x, "o": np.zeros((1, 18, 3, 4), np.float32)})
    (expected,) = by_dovetail(plain, {"x": x})
    assert_close(got["y"], expected["y"], f32)


def test_half_precision_is_summed_wide() -> None:
    made = model(
        ["Conv x w -> y"],
        {"x": f16[1, 64, 5, 5]},
        ["y"],
        opset=22,
        initializers={"w": np.ones((1, 64, 3, 3), np.float16)},
    )
    (got,) = by_dovetail(made, {"x": np.full((1, 64, 5, 5), 3.0, np.float16)})
    assert got["y"].tolist() == np.full((1, 1, 3, 3), 1728.0).tolist()


def _conv(**attributes: Any) -> Any:
    w = np.ones((3, 4, 3, 3), np.float32)
    return import_model(
        model([node("Conv x w -> y", **attributes)], {"x": f32[1, 4, 9, 9]}, ["y"], initializers={"w": w})
    )


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(LoadError, match="kernel_shape"):
        _conv(kernel_shape=[5, 5])
    with pytest.raises(LoadError, match="3 pads for 2 spatial axes"):
        _conv(pads=[1, 1, 1])
    with pytest.raises(LoadError, match="auto_pad is 'SAME'"):
        _conv(auto_pad="SAME")
    with pytest.raises(LoadError, match="strides has 1"):
        _conv(strides=[2])
    with pytest.raises(TypeRuleError, match="channels"):
        _conv(group=3)

"""Norms and the softmax family: every opset, every axis, the forms that fuse."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail.dtypes import f16, f32, f64
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node

RNG = np.random.default_rng(5)


def _random(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(7, 0), (7, 1), (11, -2), (12, 2), (13, 0), (13, 1), (21, -1)])
def test_softmax_of_every_opset(kind: str, opset: int, axis: int) -> None:
    made = model([node(f"{kind} x -> y", axis=axis)], {"x": f32["b", 3, "s"]}, ["y"], opset=opset)
    assert_like_onnxruntime(made, {"x": _random(2, 3, 4)}, {"x": _random(5, 3, 1)})


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 13])
def test_the_axis_that_softmax_has_by_default(kind: str, opset: int) -> None:
    made = model([f"{kind} x -> y"], {"x": f32["b", 3, "s"]}, ["y"], opset=opset)
    assert_like_onnxruntime(made, {"x": _random(2, 3, 4)})


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_norm_and_its_statistics(axis: int) -> None:
    made = model(
        [node("LayerNormalization x scale bias -> y mean inverse", axis=axis, epsilon=1e-3)],
        {"x": f32["b", 3, 4], "scale": f32[4], "bias": f32[4]},
        ["y", "mean", "inverse"],
    )
    vectors = {"scale": _random(4), "bias": _random(4)}
    if axis == -1:
        assert_like_onnxruntime(made, {"x": _random(2, 3, 4), **vectors}, {"x": _random(5, 3, 4), **vectors})
    feed = {"x": _random(2, 3, 4), **vectors}
    (got,) = by_dovetail(made, feed)
    axes = tuple(range(axis % 3, 3))
    mean = feed["x"].mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(feed["x"].var(axis=axes, keepdims=True) + 1e-3)
    np.testing.assert_allclose(got["mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got["inverse"], inverse, rtol=1e-4)
    expected = (feed["x"] - mean) * inverse * vectors["scale"] + vectors["bias"]
    np.testing.assert_allclose(got["y"], expected, rtol=1e-4, atol=1e-5)


def test_half_precision_is_normalised_in_f32() -> None:
    made = model(["LayerNormalization x s b -> y"], {"x": f16["b", 64], "s": f16[64], "b": f16[64]}, ["y"])
    x = (1000 + 8 * RNG.normal(size=(3, 64))).astype(np.float16)
    feed = {"x": x, "s": np.ones(64, np.float16), "b": np.zeros(64, np.float16)}
    (got,) = by_dovetail(made, feed)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got["y"].astype(np.float64), expected, atol=2e-3)


def test_double_precision_is_not_narrowed() -> None:
    made = model(["LayerNormalization x s -> y"], {"x": f64[2, 8], "s": f64[8]}, ["y"])
    x = 100.0 + RNG.normal(size=(2, 8))  # f32 would lose 1e-5 of it
    (got,) = by_dovetail(made, {"x": x, "s": np.ones(8)})
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got["y"], expected, rtol=1e-7)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm(axis: int) -> None:
    made = model([node("RMSNormalization x s -> y", axis=axis)], {"x": f32["b", 3, 4], "s": f32[4]}, ["y"], opset=23)
    feed = {"x": _random(2, 3, 4), "s": _random(4)}
    (got,) = by_dovetail(made, feed)
    square = np.mean(feed["x"] ** 2, axis=tuple(range(axis % 3, 3)), keepdims=True)
    np.testing.assert_allclose(got["y"], feed["x"] / np.sqrt(square + 1e-5) * feed["s"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("type", [f32, f16], ids=str)
def test_norms_fuse(kind: str, type: dovetail.dtypes.DType) -> None:
    made = model([f"{kind} x s -> y"], {"x": type["b", "s", 64], "s": type[64]}, ["y"], opset=23)
    rule = "layer_norm" if kind.startswith("Layer") else "rms_norm"
    assert dovetail.explain(import_model(made)).count(rule) == 1


def _channels(c: int) -> dict[str, Array]:
    found = {name: _random(c) for name in ("scale", "bias", "mean", "variance")}
    return {**found, "variance": np.abs(found["variance"]) + 0.5}


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)])
def test_batch_norm_with_stored_statistics(opset: int, shape: tuple[int, ...]) -> None:
    made = model(
        [node("BatchNormalization x scale bias mean variance -> y", epsilon=1e-2)],
        {"x": f32[("b", *shape[1:])], **{n: f32[3] for n in ("scale", "bias", "mean", "variance")}},
        ["y"],
        opset=opset,
    )
    vectors = _channels(3)
    assert_like_onnxruntime(made, {"x": _random(*shape), **vectors}, {"x": _random(5, *shape[1:]), **vectors})


@pytest.mark.slow
def test_batch_norm_in_training() -> None:
    made = model(
        [node("BatchNormalization x scale bias mean variance -> y m v", training_mode=1, momentum=0.8)],
        {"x": f32["b", 3, "s"], **{n: f32[3] for n in ("scale", "bias", "mean", "variance")}},
        ["y", "m", "v"],
        opset=15,
    )
    feed = {"x": _random(4, 3, 6), **_channels(3)}
    (got,) = by_dovetail(made, feed)
    mean, variance = feed["x"].mean((0, 2)), feed["x"].var((0, 2))
    np.testing.assert_allclose(got["m"], 0.8 * feed["mean"] + 0.2 * mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["v"], 0.8 * feed["variance"] + 0.2 * variance, rtol=1e-4, atol=1e-5)
    normal = (feed["x"] - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5)
    expected = normal * feed["scale"][:, None] + feed["bias"][:, None]
    np.testing.assert_allclose(got["y"], expected, rtol=1e-4, atol=1e-4)


def test_batch_norm_for_each_feature_before_opset_9() -> None:
    of = {n: f32[3, 4] for n in ("scale", "bias", "mean", "variance")}
    made = model(
        [node("BatchNormalization x scale bias mean variance -> y", spatial=0)],
        {"x": f32["b", 3, 4], **of},
        ["y"],
        opset=7,
    )
    feed = {"x": _random(2, 3, 4), **{n: np.abs(_random(3, 4)) + 0.5 for n in of}}
    (got,) = by_dovetail(made, feed)
    expected = (feed["x"] - feed["mean"]) / np.sqrt(feed["variance"] + 1e-5) * feed["scale"] + feed["bias"]
    np.testing.assert_allclose(got["y"], expected, rtol=1e-4, atol=1e-5)


def test_training_before_opset_14_is_refused() -> None:
    vectors = {n: f32[3] for n in ("scale", "bias", "mean", "variance")}
    made = model(
        ["BatchNormalization x scale bias mean variance -> y m v sm sv"], {"x": f32[2, 3], **vectors}, ["y"], opset=9
    )
    with pytest.raises(UnsupportedError, match="training before opset 14"):
        import_model(made)


@pytest.mark.slow
def test_a_batch_norm_goes_into_the_convolution_before_it() -> None:
    made = model(
        ["Conv x w -> c", "BatchNormalization c scale bias mean variance -> n", "Relu n -> y"],
        {"x": f32["b", 3, 8, 8]},
        ["y"],
        initializers={"w": _random(16, 3, 3, 3), **_channels(16)},
    )
    assert dovetail.explain(import_model(made)).count("conv_batch_norm") == 1
    assert_like_onnxruntime(made, {"x": _random(2, 3, 8, 8)})


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 4, 5, 6), (2, 4, 2, 3, 2)])
def test_instance_and_group_norm(shape: tuple[int, ...]) -> None:
    inputs = {"x": f32[("b", 4, *("h", "w", "d")[: len(shape) - 2])], "s": f32[4], "t": f32[4]}
    nodes = ["InstanceNormalization x s t -> i", node("GroupNormalization x s t -> g", num_groups=2)]
    made = model(nodes, inputs, ["i", "g"], opset=21)
    vectors = {"s": _random(4), "t": _random(4)}
    assert_like_onnxruntime(made, {"x": _random(*shape), **vectors}, {"x": _random(1, 4, *shape[2:]), **vectors})


@pytest.mark.slow
def test_group_norm_had_one_scale_for_each_group_before_opset_21() -> None:
    inputs = {"x": f32["b", 6, "h", "w"], "s": f32[2], "t": f32[2]}
    made = model([node("GroupNormalization x s t -> y", num_groups=2)], inputs, ["y"], opset=18)
    feed = {"x": _random(2, 6, 4, 5), "s": _random(2), "t": _random(2)}
    (got,) = by_dovetail(made, feed)
    grouped = feed["x"].reshape(2, 2, -1)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    expected = normal * feed["s"][:, None] + feed["t"][:, None]
    np.testing.assert_allclose(got["y"], expected.reshape(2, 6, 4, 5), rtol=1e-4, atol=1e-4)


def test_group_norm_fuses() -> None:
    inputs = {"x": f32["b", 32, "h", "w"], "s": f32[32], "t": f32[32]}
    made = model([node("GroupNormalization x s t -> y", num_groups=8)], inputs, ["y"])
    assert dovetail.explain(import_model(made)).count("group_norm") == 1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 40])
def test_lrn(size: int) -> None:
    made = model([node("LRN x -> y", size=size, alpha=0.1, beta=0.7, bias=1.5)], {"x": f32["b", 7, "h", "w"]}, ["y"])
    x = _random(2, 7, 3, 4)
    (got,) = by_dovetail(made, {"x": x})
    low, high = (size - 1) // 2, size // 2
    squares = [(x[:, max(0, c - low) : c + high + 1] ** 2).sum(1) for c in range(7)]
    np.testing.assert_allclose(got["y"], x / (1.5 + 0.1 / size * np.stack(squares, 1)) ** 0.7, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_nothing_is_nothing(p: int) -> None:
    made = model([node("LpNormalization x -> y", p=p, axis=1)], {"x": f32["b", 3, "s"]}, ["y"], opset=22)
    x = _random(2, 3, 4)
    x[1] = 0.0
    (got,) = by_dovetail(made, {"x": x})
    length = np.linalg.norm(x, ord=p, axis=1, keepdims=True)
    expected = np.divide(x, length, out=np.zeros_like(x), where=length != 0)
    np.testing.assert_allclose(got["y"], expected, rtol=1e-4, atol=1e-6)


def test_an_order_that_is_not_one_is_refused() -> None:
    with pytest.raises(LoadError, match="p is 3"):
        import_model(model([node("LpNormalization x -> y", p=3)], {"x": f32[2, 3]}, ["y"]))

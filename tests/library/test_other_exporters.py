"""Norms, rotations, masks and convolutions as JAX, TensorFlow and Keras write them."""

from __future__ import annotations

import numpy as np

from dovetail import Value, library, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.leaf import input, param
from tests.library.attending import (
    Array,
    angles,
    attend,
    causal,
    feeds,
    near,
    plain_softmax,
    recognised,
    rotate,
    run,
    swap,
)

X = input("x", f32["b", 6, 8])
GAIN, BIAS = param("gain", f32[8]), param("bias", f32[8])
FEEDS = {"x": np.random.default_rng(0).normal(1.0, 2.0, (2, 6, 8)).astype(np.float32)}
PARAMS = {
    "gain": np.random.default_rng(1).normal(size=8).astype(np.float32),
    "bias": np.random.default_rng(2).normal(size=8).astype(np.float32),
}


def normed(centre: bool, bias: bool) -> Array:
    """Rows over their root mean square, in float64."""
    x = FEEDS["x"].astype(np.float64)
    x = x - x.mean(-1, keepdims=True) if centre else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * PARAMS["gain"] + (PARAMS["bias"] if bias else 0)


def check_norm(spelled: Value, op: object, centre: bool, bias: bool) -> None:
    graph = recognised(spelled).graph
    assert graph.outputs["y"].op is op
    near(run(graph, FEEDS | PARAMS)["y"], normed(centre, bias))


def summed(x: Value) -> Value:
    """A mean as a sum times one over the number of its terms."""
    return ops.reduce_sum(x, axes=(-1,)) * leaf.scalar(1 / 8, f32)


def test_means_as_sums() -> None:
    centred = X - summed(X)
    row = ops.unsqueeze(GAIN, axes=(-2,))
    check_norm(
        centred * ops.rsqrt(summed(centred * centred) + 1e-5) * row + BIAS, library.layer_norm, centre=True, bias=True
    )


def test_a_variance_from_the_mean_of_squares() -> None:
    mean = ops.reduce_mean(X, axes=(-1,))
    variance = ops.maximum(ops.reduce_mean(X * X, axes=(-1,)) - mean * mean, 0.0)
    slope = ops.rsqrt(variance + 1e-5) * GAIN
    check_norm((X - mean) * slope + BIAS, library.layer_norm, centre=True, bias=True)


def test_a_layer_norm_as_a_batch_norm() -> None:
    mean = ops.reduce_mean(X, axes=(-1,))
    centred = X - mean
    slope = ops.rsqrt(ops.reduce_mean(centred * centred, axes=(-1,)) + 1e-5) * GAIN
    check_norm(X * slope + (BIAS - mean * slope), library.layer_norm, centre=True, bias=True)


def test_the_root_times_the_gain_first() -> None:
    slope = ops.rsqrt(ops.reduce_mean(X * X, axes=(-1,)) + 1e-5) * GAIN
    check_norm(X * slope, library.rms_norm, centre=False, bias=False)


def test_a_gain_that_is_a_row_of_a_matrix() -> None:
    gain = ops.part(param("gain", f32[2, 8]), axis=-2, index=0, parts=2)
    graph = recognised(X * ops.rsqrt(ops.reduce_mean(X * X, axes=(-1,)) + 1e-5) * gain).graph
    assert graph.outputs["y"].op is library.rms_norm
    near(
        run(graph, FEEDS | {"gain": np.stack([PARAMS["gain"], PARAMS["bias"]])})["y"], normed(centre=False, bias=False)
    )


def test_a_rotation_half_by_half() -> None:
    a, b = (ops.part(X, axis=-1, index=i, parts=2) for i in (0, 1))
    cos, sin = input("cos", f32[6, 4]), input("sin", f32[6, 4])
    graph = recognised(ops.concat(a * cos - b * sin, cos * b + a * sin, axis=-1)).graph
    assert graph.outputs["y"].op is library.rope
    wide = angles(6, 8)
    arrays = {**FEEDS, "cos": wide[0][:, :4].astype(np.float32), "sin": wide[1][:, :4].astype(np.float32)}
    near(run(graph, arrays)["y"], rotate(FEEDS["x"].astype(np.float64), *wide))


def test_scores_times_zeros_plus_a_large_number() -> None:
    q, k, v = (input(name, f32[2, 2, 5, 4]) for name in "qkv")
    seen = np.tril(np.ones((5, 5), np.float32))
    scores = (q @ swap(k)) * 0.5 * leaf.constant(seen) + leaf.constant((1 - seen) * np.float32(-2e38))
    graph = recognised(plain_softmax(scores) @ v).graph
    assert graph.outputs["y"].op is library.attention
    arrays = feeds(graph)
    expected = attend(arrays["q"], arrays["k"], arrays["v"], scale=0.5, keep=causal(5, 5))
    near(run(graph, arrays)["y"], expected)


def test_groups_of_heads_that_are_folded_into_the_batch_for_values_only() -> None:
    q, k, v = (input(name, f32[3, heads, 5, 4]) for name, heads in (("q", 4), ("k", 2), ("v", 2)))

    def widened(x: Value) -> Value:
        return ops.expand(ops.unsqueeze(x, axes=(-3,)), axis=-3, size=2)

    weights = plain_softmax((q @ swap(ops.merge(widened(k), axis=-3))) * 0.5)
    folded = ops.merge(weights, axis=-3) @ ops.merge(widened(v), axis=-3, count=3)
    graph = recognised(ops.split(folded, axis=-3, size=4)).graph
    assert graph.outputs["y"].op is library.attention
    arrays = feeds(graph)
    near(run(graph, arrays)["y"], attend(arrays["q"], arrays["k"], arrays["v"], scale=0.5))


def test_a_convolution_whose_channels_stand_last() -> None:
    image, weights = input("x", f32["b", 6, 6, 3]), param("w", f32[4, 3, 3, 3])
    bias = param("bias", f32[1, 1, 1, 4])
    padded = ops.permute(image, order=(-1, -3, -2))
    for axis in (-2, -1):
        padded = ops.pad(padded, leaf.scalar(0.0, f32), axis=axis, before=0, after=1)
    last = ops.permute(ops.conv(padded, weights, strides=(2, 2)), order=(-2, -1, -3))
    graph = recognised(ops.permute(ops.relu(last + bias), order=(-1, -3, -2))).graph
    found = graph.outputs["y"]
    assert found.op is library.conv_bias_act
    assert found.attrs["padding"] == (0, 0, 1, 1)

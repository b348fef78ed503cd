"""Convolutions with bias and activation in their epilogue, and with a batch norm folded into their weights."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.derive.fuse import fuse
from dovetail.derive.unfuse import unfuse
from dovetail.dtypes import f32
from dovetail.graphs import TensorType
from dovetail.ir import leaf
from dovetail.ir.leaf import input, param
from dovetail.ir.walk import walk
from dovetail.library import ALL
from dovetail.library.activation import Activation, activation
from dovetail.library.conv_batch_norm import FoldedActivation, conv_batch_norm
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.ops.convolution import conv
from dovetail.passes.canonicalize import canonicalize
from tests.library import judge
from tests.library.judge import DIVISIONS, fused, near, numbers, only_miss, run

X, W, B = input("x", f32[2, 4, 7, 6]), param("w", f32[6, 2, 3, 2]), param("b", f32[6, 1, 1])
GAIN, BIAS, MEAN = param("gain", f32[6, 1, 1]), param("bias", f32[6, 1, 1]), param("mean", f32[6, 1, 1])
VARIANCE = param("variance", f32[6, 1, 1])
EPS = 2.0**-10
STRIDES, DILATIONS, PADDING, GROUPS = (2, 1), (1, 2), (1, 0, 2, 1), 2
Y = conv(X, W, strides=STRIDES, dilations=DILATIONS, padding=PADDING, groups=GROUPS)
R = input("r", f32[Y.shape])
FORMULAS: dict[Activation, judge.Formula] = {
    "none": lambda y: y,
    "relu": judge.relu,
    "gelu": judge.gelu,
    "gelu_tanh": judge.gelu_tanh,
    "silu": judge.silu,
    "tanh": np.tanh,
    "sigmoid": judge.sigmoid,
    "relu6": judge.relu6,
    "hard_sigmoid": judge.hard_sigmoid,
    "hard_swish": judge.hard_swish,
}


def convolved(x: judge.Array, w: judge.Array) -> judge.Array:
    """One output element after the other."""
    top, left, bottom, right = PADDING
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [(w.shape[2 + i] - 1) * DILATIONS[i] + 1 for i in range(2)]
    places = [(padded.shape[2 + i] - reach[i]) // STRIDES[i] + 1 for i in range(2)]
    y = np.zeros((x.shape[0], w.shape[0], *places))
    for n, m, i, j in np.ndindex(*y.shape):
        first = m // (w.shape[0] // GROUPS) * w.shape[1]
        rows = slice(i * STRIDES[0], i * STRIDES[0] + reach[0], DILATIONS[0])
        columns = slice(j * STRIDES[1], j * STRIDES[1] + reach[1], DILATIONS[1])
        y[n, m, i, j] = np.sum(padded[n, first : first + w.shape[1], rows, columns] * w[m])
    return y


@pytest.mark.parametrize(("act", "bias"), [c for c in product(FORMULAS, (B, None)) if c != ("none", None)])
def test_bias_and_activation(act: Activation, bias: Value | None) -> None:
    result = fused(activation(act, Y if bias is None else bias + Y))
    assert result.graph.outputs["y"] is conv_bias_act(
        X, W, bias, act=act, strides=STRIDES, dilations=DILATIONS, padding=PADDING, groups=GROUPS
    )
    arrays = numbers(result.graph)
    y = convolved(arrays["x"], arrays["w"]) + (0 if bias is None else arrays["b"])
    near(run(result.graph, arrays)["y"], FORMULAS[act](y))


@pytest.mark.parametrize("other", [f32[5], f32[1, 1], f32[1, 1, 1], f32[2, 6, 1, 1], f32[6, 1, 5]], ids=str)
def test_a_bias_of_another_shape_stays_outside(other: TensorType) -> None:
    b = param("b", other)
    result = fused(Y + b, [conv_bias_act])
    assert only_miss(result) == ("conv_bias_act", "bias_is_one_for_each_channel")
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], convolved(arrays["x"], arrays["w"]) + arrays["b"])


@pytest.mark.parametrize(("act", "bias"), [*product(FORMULAS, (B,)), ("relu", None)])
def test_a_residual_is_added_before_the_activation(act: Activation, bias: Value | None) -> None:
    result = fused(activation(act, R + (Y if bias is None else Y + bias)))
    assert result.graph.outputs["y"] is conv_bias_act(
        X, W, bias, R, act=act, strides=STRIDES, dilations=DILATIONS, padding=PADDING, groups=GROUPS
    )
    arrays = numbers(result.graph)
    y = convolved(arrays["x"], arrays["w"]) + (0 if bias is None else arrays["b"])
    near(run(result.graph, arrays)["y"], FORMULAS[act](y + arrays["r"]))


@pytest.mark.parametrize("other", [f32[2, 6, 1, 1], f32[3, 2, 6, 4, 5], f32[4, 5]], ids=str)
def test_a_residual_of_another_shape_stays_outside(other: TensorType) -> None:
    r = input("r", other)
    result = fused(ops.relu(Y + B + r), [conv_bias_act])
    assert [v.op.name for v in result.graph.values if v.op is conv_bias_act or v.op is ops.add] == [
        "conv_bias_act",
        "add",
    ]
    assert ("conv_bias_act", "residual_has_the_shape_of_the_convolution") in [(m.rule, m.reason) for m in result.missed]
    arrays = numbers(result.graph)
    y = convolved(arrays["x"], arrays["w"]) + arrays["b"] + arrays["r"]
    near(run(result.graph, arrays)["y"], judge.relu(y))


def test_a_convolution_that_is_stretched_to_a_residual_stays_apart() -> None:
    x, w, r = input("x", f32[1, 2, 3, 3]), param("w", f32[4, 2, 3, 3]), input("r", f32[1, 4, 6, 5])
    assert fused(ops.relu(conv(x, w) + r)).graph.count(conv_bias_act) == 0


def test_of_two_convolutions_one_is_the_residual_of_the_other() -> None:
    other = conv(X, param("v", f32[6, 2, 3, 2]), strides=STRIDES, dilations=DILATIONS, padding=PADDING, groups=GROUPS)
    graph = fused(ops.relu((Y + B) + (other + GAIN))).graph
    assert [v.op for v in graph.values if v.operands] == [conv_bias_act, conv_bias_act]


def test_a_line_and_a_volume_have_biases_of_their_own_rank() -> None:
    line, line_weights, line_bias = input("x", f32[1, 2, 9]), param("w", f32[3, 2, 4]), param("b", f32[3, 1])
    volume, weights, bias = input("x", f32[1, 2, 4, 4, 4]), param("w", f32[3, 2, 2, 2, 2]), param("b", f32[3, 1, 1, 1])
    assert fused(conv(line, line_weights) + line_bias).graph.count(conv_bias_act) == 1
    # The canonical form of a volume is a convolution of images.
    as_written = canonicalize(Graph.of(conv(volume, weights) + bias), without={"third_axis_as_batch"})
    assert fuse(as_written, ALL).graph.count(conv_bias_act) == 1


def batch_norm(y: Value, division: str) -> Value:
    return DIVISIONS[division](y - MEAN, VARIANCE + EPS) * GAIN + BIAS


def _folded(b: Value | None, residual: Value | None, act: FoldedActivation) -> Value:
    return conv_batch_norm(
        X,
        W,
        GAIN,
        BIAS,
        MEAN,
        VARIANCE,
        b,
        residual,
        eps=EPS,
        act=act,
        strides=STRIDES,
        dilations=DILATIONS,
        padding=PADDING,
        groups=GROUPS,
    )


ACTS: tuple[FoldedActivation, ...] = ("none", "relu", "silu")


@pytest.mark.parametrize("division", list(DIVISIONS))
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("bias", [B, None], ids=["bias", "no bias"])
def test_a_batch_norm_is_folded(division: str, act: FoldedActivation, bias: Value | None) -> None:
    result = fused(activation(act, batch_norm(Y if bias is None else Y + bias, division)))
    folded = _folded(bias, None, act)
    assert result.graph.outputs["y"] is folded
    arrays = {k: np.abs(v) if k == "variance" else v for k, v in numbers(result.graph).items()}
    y = convolved(arrays["x"], arrays["w"]) + (0 if bias is None else arrays["b"])
    y = (y - arrays["mean"]) / np.sqrt(arrays["variance"] + EPS) * arrays["gain"] + arrays["bias"]
    near(run(result.graph, arrays)["y"], FORMULAS[act](y))


@pytest.mark.parametrize("division", list(DIVISIONS))
def test_a_batch_norm_with_a_residual_behind_it_is_folded(division: str) -> None:
    result = fused(ops.relu(batch_norm(Y, division) + R))
    folded = _folded(None, R, "relu")
    assert result.graph.outputs["y"] is folded
    arrays = {k: np.abs(v) if k == "variance" else v for k, v in numbers(result.graph).items()}
    y = (convolved(arrays["x"], arrays["w"]) - arrays["mean"]) / np.sqrt(arrays["variance"] + EPS)
    near(run(result.graph, arrays)["y"], judge.relu(y * arrays["gain"] + arrays["bias"] + arrays["r"]))


def test_spelled_out_it_is_one_convolution_and_work_on_parameters() -> None:
    graph = fuse(Graph.of(ops.relu(batch_norm(Y, "root"))), ALL).graph
    spelled = unfuse(graph, keep=lambda v: v.op is conv_bias_act)
    (kernel,) = (v for v in spelled.values if v.op is conv_bias_act)
    assert spelled.outputs["y"] is kernel
    # Everything but the convolution itself is known when the parameters are bound.
    early = [v for operand in kernel.operands if operand is not X for v in walk([operand])]
    assert all(v.op is not leaf.INPUT for v in early)


def test_statistics_of_the_batch_itself_are_not_folded() -> None:
    mean = ops.reduce_mean(Y, axes=(0, 2, 3))
    centred = Y - mean
    variance = ops.reduce_mean(centred * centred, axes=(0, 2, 3))
    result = fused(centred * ops.rsqrt(variance + EPS) * GAIN + BIAS)
    assert result.graph.count(conv_batch_norm) == 0
    arrays = numbers(result.graph)
    y = convolved(arrays["x"], arrays["w"])
    normed = (y - y.mean((0, 2, 3), keepdims=True)) / np.sqrt(y.var((0, 2, 3), keepdims=True) + EPS)
    near(run(result.graph, arrays)["y"], normed * arrays["gain"] + arrays["bias"])


def test_statistics_of_another_shape_are_refused() -> None:
    mean = param("mean", f32[2, 6, 1, 1])
    result = fused((Y - mean) * ops.rsqrt(VARIANCE + EPS) * GAIN + BIAS)
    assert only_miss(result) == ("conv_batch_norm", "statistics_are_one_for_each_channel")
    arrays = {k: np.abs(v) if k == "variance" else v for k, v in numbers(result.graph).items()}
    y = (convolved(arrays["x"], arrays["w"]) - arrays["mean"]) / np.sqrt(arrays["variance"] + EPS)
    near(run(result.graph, arrays)["y"], y * arrays["gain"] + arrays["bias"])

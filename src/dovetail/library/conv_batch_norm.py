"""conv_batch_norm: a batch norm folded into the convolution before it.

Its body is the folded form: what it does to the weights needs parameters alone, so it is done once, at bind time.
The forms that models write are its spellings. In training the statistics are computed from the convolution's own
result, which then has other readers and stays (`interior_is_private`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dovetail import ops
from dovetail.declare import Change, every, fused_op, typed
from dovetail.ir.dtype import f16, f32
from dovetail.ir.value import Value
from dovetail.library.activation import activation
from dovetail.library.conv_bias_act import (
    conv_bias_act,
    for_each_channel,
    is_one_for_each_channel,
    residual_has_the_shape_of_the_convolution,
    residual_in_the_shape_of_the_convolution,
)
from dovetail.ops.convolution import conv

FoldedActivation = Literal["none", "relu", "silu"]


@fused_op(
    shapes="x[n, c, h, w] w[m, c, i, j] gain[m, 1, 1] bias[m, 1, 1] mean[m, 1, 1] variance[m, 1, 1] b[m, 1, 1] "
    "residual[n, m, h - i + 1, w - j + 1]",
    stage="recognise",
)
def conv_batch_norm(
    x: Value,
    w: Value,
    gain: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    b: Value | None = None,
    residual: Value | None = None,
    *,
    eps: float,
    act: FoldedActivation = "none",
    strides: tuple[int, ...] = (1, 1),
    dilations: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    groups: int = 1,
) -> Value:
    """Convolution, batch norm with stored statistics, residual add and activation, as one convolution with other
    weights."""
    slope = gain * ops.rsqrt(variance + eps)
    shift = bias - (mean if b is None else mean - b) * slope
    weights = w * ops.unsqueeze(slope, axes=(-3,))
    return conv_bias_act(
        x, weights, shift, residual, act=act, strides=strides, dilations=dilations, padding=padding, groups=groups
    )


@conv_batch_norm.spelling
def norm_after(*operands: Any, **call: Any) -> Value:
    """The convolution, then the norm."""
    return _norm_after(lambda x, variance: x * ops.rsqrt(variance), **call)


@conv_batch_norm.spelling
def norm_after_by_division(*operands: Any, **call: Any) -> Value:
    """The convolution, then the norm with a division by the root."""
    return _norm_after(lambda x, variance: x / ops.sqrt(variance), **call)


def _norm_after(
    over_root: Callable[[Value, Value], Value],
    *,
    x: Value,
    w: Value,
    gain: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    b: Value | None,
    residual: Value | None,
    eps: float,
    act: FoldedActivation,
    **window: Any,
) -> Value:
    y = conv(x, w, **window)
    centred = (y if b is None else y + b) - mean
    normed = over_root(centred, variance + eps) * gain + bias
    return activation(act, normed if residual is None else normed + residual)


@conv_batch_norm.requires(
    reason="the weights are {w.type}, and gain, bias, mean and variance are {gain.type}, {bias.type}, {mean.type} and "
    "{variance.type}; each of them, and the convolution's own bias, is one number for a channel of an image",
    hint="give each statistic one number for each channel",
)
def statistics_are_one_for_each_channel(
    w: Value, gain: Value, bias: Value, mean: Value, variance: Value, b: Value | None
) -> bool:
    vectors = (gain, bias, mean, variance, b)
    return w.rank == 4 and all(v is None or is_one_for_each_channel(v, w) for v in vectors)


@conv_batch_norm.remedy(statistics_are_one_for_each_channel)
def statistics_as_one_for_each_channel(
    w: Value, gain: Value, bias: Value, mean: Value, variance: Value, b: Value | None
) -> Change | None:
    """Gain, bias, mean and variance are one number for each channel."""
    if w.rank != 4:
        return None
    shape = for_each_channel(w)
    return every(lambda v: typed(v, shape=shape), gain=gain, bias=bias, mean=mean, variance=variance, b=b)


conv_batch_norm.requires(
    reason="the residual is {residual.type}, and its sum with the norm is {result.type}; one number is added where one "
    "is written",
    hint="give the residual the shape of the convolution",
)(residual_has_the_shape_of_the_convolution)
conv_batch_norm.remedy(residual_has_the_shape_of_the_convolution)(residual_in_the_shape_of_the_convolution)


@conv_batch_norm.requires(
    reason="the weights are {w.type}; times the slope of the norm they can overflow where the result is in range",
)
def weights_have_the_range(w: Value) -> bool:
    return w.dtype != f16


@conv_batch_norm.remedy(weights_have_the_range)
def all_in_f32(
    x: Value,
    w: Value,
    gain: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    b: Value | None,
    residual: Value | None,
) -> Change:
    """The convolution and its norm are in f32."""
    named = {"x": x, "w": w, "gain": gain, "bias": bias, "mean": mean, "variance": variance, "b": b}
    return every(lambda v: typed(v, dtype=f32), **named, residual=residual)

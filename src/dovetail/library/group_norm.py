"""group_norm: groups of channels of an image brought to mean 0 and variance 1."""

from __future__ import annotations

from dataclasses import replace

from dovetail import ops
from dovetail.declare import Change, fused_op, typed
from dovetail.declare.cost import Cost, default_cost
from dovetail.ir.value import Value
from dovetail.library.layer_norm import layer_norm
from dovetail.ops.deferred_shape import size_of


def _affine(y: Value, gain: Value | None, bias: Value | None) -> Value:
    if gain is not None:
        y = y * gain
    return y if bias is None else y + bias


@fused_op(shapes="x[*, groups*c, h, w] gain[groups*c, 1, 1] bias[groups*c, 1, 1]", stage="recognise")
def group_norm(x: Value, gain: Value | None = None, bias: Value | None = None, *, groups: int, eps: float) -> Value:
    """Each group of channels of [*, c, h, w] normalised over its channels and pixels, times a gain, plus a bias."""
    grouped = ops.split(x, axis=-3, parts=groups)
    y = layer_norm(ops.merge(grouped, axis=-1, count=3), eps=eps)
    image = ops.split(ops.split(y, axis=-1, parts=size_of(grouped, -3)), axis=-1, parts=size_of(grouped, -2))
    return _affine(ops.merge(image, axis=-3), gain, bias)


@group_norm.spelling
def over_three_axes(
    x: Value, gain: Value | None = None, bias: Value | None = None, *, groups: int, eps: float
) -> Value:
    """The image keeps its axes, and the mean goes over three of them."""
    grouped = ops.split(x, axis=-3, parts=groups)
    centred = grouped - ops.reduce_mean(grouped, axes=(-3, -2, -1))
    variance = ops.reduce_mean(centred * centred, axes=(-3, -2, -1))
    return _affine(ops.merge(centred * ops.rsqrt(variance + eps), axis=-3), gain, bias)


@group_norm.cost
def cost(x: Value, gain: Value | None, bias: Value | None, groups: int, eps: float) -> Cost:
    """All of it counts as work on groups, whose elements are apart in memory."""
    once = default_cost(group_norm(x, gain, bias, groups=groups, eps=eps))
    return replace(once, dense=once.flops, kind="norm.grouped")


def _one_for_each_channel(vector: Value | None, x: Value) -> bool:
    return vector is None or (vector.rank == 3 and vector.shape[0] == x.shape[-3] and vector.shape[1:] == (1, 1))


@group_norm.requires(
    reason="the gain is {gain.type} and x is {x.type}; one number scales a channel",
    hint="give the gain one number for each channel",
)
def gain_is_one_for_each_channel(x: Value, gain: Value | None) -> bool:
    return _one_for_each_channel(gain, x)


@group_norm.remedy(gain_is_one_for_each_channel)
def gain_as_one_for_each_channel(x: Value, gain: Value) -> Change:
    """The gain is one number for each channel."""
    return {"gain": typed(gain, shape=(x.shape[-3], 1, 1))}


@group_norm.requires(
    reason="the bias is {bias.type} and x is {x.type}; one number shifts a channel",
    hint="give the bias one number for each channel",
)
def bias_is_one_for_each_channel(x: Value, bias: Value | None) -> bool:
    return _one_for_each_channel(bias, x)


@group_norm.remedy(bias_is_one_for_each_channel)
def bias_as_one_for_each_channel(x: Value, bias: Value) -> Change:
    """The bias is one number for each channel."""
    return {"bias": typed(bias, shape=(x.shape[-3], 1, 1))}

"""Convolution blocks: conv with batch norm, the residual block of ResNet, a block of a U-Net."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare.block import block
from dovetail.ir.value import Value
from dovetail.library.activation import Activation, activation
from dovetail.library.group_norm import group_norm
from dovetail.library.silu import silu
from dovetail.ops.convolution import conv


@block(shapes="x[n, c, h, w] w[m, c, 3, 3] gain[m, 1, 1] bias[m, 1, 1] mean[m, 1, 1] variance[m, 1, 1]")
def conv_norm_act(
    x: Value,
    w: Value,
    gain: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    eps: float,
    act: Activation = "relu",
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (1, 1, 1, 1),
) -> Value:
    """Convolution, batch norm with stored statistics, activation."""
    y = conv(x, w, strides=strides, padding=padding)
    return activation(act, (y - mean) * ops.rsqrt(variance + eps) * gain + bias)


@block(shapes="x[n, c, h, w] w1[c, c, 3, 3] b1[c, 1, 1] w2[c, c, 3, 3] b2[c, 1, 1]")
def basic_block(x: Value, w1: Value, b1: Value, w2: Value, b2: Value) -> Value:
    """Two convolutions around an activation, added to their input and activated."""
    y = ops.relu(conv(x, w1, padding=(1, 1, 1, 1)) + b1)
    return ops.relu(conv(y, w2, padding=(1, 1, 1, 1)) + b2 + x)


@block(
    shapes="x[n, groups*c, h, w] gain1[groups*c, 1, 1] bias1[groups*c, 1, 1] w1[groups*c, groups*c, 3, 3] "
    "b1[groups*c, 1, 1] gain2[groups*c, 1, 1] bias2[groups*c, 1, 1] w2[groups*c, groups*c, 3, 3] b2[groups*c, 1, 1]"
)
def unet_block(
    x: Value,
    gain1: Value,
    bias1: Value,
    w1: Value,
    b1: Value,
    gain2: Value,
    bias2: Value,
    w2: Value,
    b2: Value,
    *,
    groups: int,
    eps: float,
) -> Value:
    """Twice group norm, silu and convolution, added to the input."""
    y = conv(silu(group_norm(x, gain1, bias1, groups=groups, eps=eps)), w1, padding=(1, 1, 1, 1)) + b1
    y = conv(silu(group_norm(y, gain2, bias2, groups=groups, eps=eps)), w2, padding=(1, 1, 1, 1)) + b2
    return y + x

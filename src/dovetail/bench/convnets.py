"""Convolutional networks as workloads."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from dovetail.bench.net import Net
from dovetail.dataclass import dataclass

GROUPS = 32
"""Of a group norm."""


@dataclass(frozen=True, slots=True)
class Resnet:
    """The sizes of a ResNet of bottlenecks; those of ResNet-50 unless said otherwise."""

    size: int = 224
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1000


@dataclass(frozen=True, slots=True)
class UnetBlock:
    """The sizes of two residual blocks of a diffusion model."""

    channels: int = 128
    size: int = 32


def resnet(of: Resnet) -> onnx.ModelProto:
    """Return a ResNet as exporters leave it: batch norms folded into the convolutions."""
    net = Net("resnet")
    x = net.input("image", TensorProto.FLOAT, [1, 3, of.size, of.size])
    width = of.width
    x = net.op("Relu", _conv(net, "stem", x, 3, width, 7, stride=2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stage, blocks in enumerate(of.blocks):
        inner = of.width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            at = f"stages.{stage}.{block}"
            y = net.op("Relu", _conv(net, f"{at}.conv1", x, width, inner, 1))
            y = net.op("Relu", _conv(net, f"{at}.conv2", y, inner, inner, 3, stride=stride))
            y = _conv(net, f"{at}.conv3", y, inner, inner * 4, 1)
            short = x if block else _conv(net, f"{at}.short", x, width, inner * 4, 1, stride=stride)
            x = net.op("Relu", net.op("Add", y, short))
            width = inner * 4
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    head = net.weight("head.weight", width, of.classes), net.vector("head.bias", of.classes)
    net.output("scores", net.op("Gemm", x, *head))
    return net.model()


def unet_block(of: UnetBlock) -> onnx.ModelProto:
    """Two residual blocks of a diffusion model at one resolution: group norm, SiLU, 3×3 convolutions."""
    channels, size = of.channels, of.size
    net = Net("unet_block")
    x = net.input("x", TensorProto.FLOAT, [1, channels, size, size])
    for block in range(2):
        y = x
        for layer in range(2):
            at = f"blocks.{block}.{layer}"
            y = _conv(net, f"{at}.conv", _group_norm_silu(net, f"{at}.norm", y, channels, size), channels, channels, 3)
        x = net.op("Add", x, y)
    net.output("y", x)
    return net.model()


def _conv(net: Net, name: str, x: str, inner: int, outer: int, kernel: int, stride: int = 1) -> str:
    return net.op(
        "Conv",
        x,
        net.weight(f"{name}.weight", outer, inner, kernel, kernel),
        net.vector(f"{name}.bias", outer),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[kernel // 2] * 4,
    )


def _group_norm_silu(net: Net, name: str, x: str, channels: int, size: int) -> str:
    flat = net.op("Reshape", x, net.ints(0, GROUPS, -1))
    ones, zeros = net.array(np.ones(GROUPS, np.float32)), net.array(np.zeros(GROUPS, np.float32))
    normed = net.op("Reshape", net.op("InstanceNormalization", flat, ones, zeros), net.ints(1, channels, size, size))
    gain, shift = net.vector(f"{name}.weight", channels, around=1.0), net.vector(f"{name}.bias", channels)
    y = net.op("Mul", normed, net.op("Unsqueeze", gain, net.ints(1, 2)))
    y = net.op("Add", y, net.op("Unsqueeze", shift, net.ints(1, 2)))
    return net.op("Mul", y, net.op("Sigmoid", y))

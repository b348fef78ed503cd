"""Convolutional networks as workloads."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from dovetail.bench.net import Net


def resnet50(size: int = 224) -> onnx.ModelProto:
    """ResNet-50 as exporters leave it: batch norms folded into the convolutions."""
    net = Net("resnet50")
    x = net.input("image", TensorProto.FLOAT, [1, 3, size, size])
    x = net.op("Relu", _conv(net, x, 3, 64, 7, stride=2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.op("Relu", _conv(net, x, width, inner, 1))
            y = net.op("Relu", _conv(net, y, inner, inner, 3, stride=stride))
            y = _conv(net, y, inner, inner * 4, 1)
            short = x if block else _conv(net, x, width, inner * 4, 1, stride=stride)
            x = net.op("Relu", net.op("Add", y, short))
            width = inner * 4
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    net.output("scores", net.op("Gemm", x, net.weight(width, 1000), net.vector(1000)))
    return net.model()


def unet_block(channels: int = 128, size: int = 32) -> onnx.ModelProto:
    """Two residual blocks of a diffusion model at one resolution: group norm, SiLU, 3×3 convolutions."""
    net = Net("unet_block")
    x = net.input("x", TensorProto.FLOAT, [1, channels, size, size])
    for _ in range(2):
        y = x
        for _ in range(2):
            y = _conv(net, _group_norm_silu(net, y, channels, size), channels, channels, 3)
        x = net.op("Add", x, y)
    net.output("y", x)
    return net.model()


def _conv(net: Net, x: str, inner: int, outer: int, kernel: int, stride: int = 1) -> str:
    return net.op(
        "Conv",
        x,
        net.weight(outer, inner, kernel, kernel),
        net.vector(outer),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[kernel // 2] * 4,
    )


def _group_norm_silu(net: Net, x: str, channels: int, size: int) -> str:
    groups = 32
    flat = net.op("Reshape", x, net.ints(0, groups, -1))
    ones, zeros = net.vector(groups, around=1.0), net.vector(groups)
    normed = net.op("Reshape", net.op("InstanceNormalization", flat, ones, zeros), net.ints(1, channels, size, size))
    gain = net.op("Unsqueeze", net.vector(channels, around=1.0), net.ints(1, 2))
    y = net.op("Add", net.op("Mul", normed, gain), net.op("Unsqueeze", net.vector(channels), net.ints(1, 2)))
    return net.op("Mul", y, net.op("Sigmoid", y))

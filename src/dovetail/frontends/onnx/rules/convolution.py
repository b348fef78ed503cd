"""Convolutions."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.rule import collected, rule
from dovetail.frontends.onnx.spatial import spatial
from dovetail.ir.value import Value
from dovetail.ops import build


def _with_bias(y: Value, b: Value | None) -> Value:
    """One number for each channel is added."""
    return y if b is None else y + build.expand_dims(b, tuple(range(-(y.rank - 2), 0)))


def _check_kernel(n: Node, w: Value, kernel_shape: tuple[int, ...] | None) -> None:
    found = w.shape[2:]
    if kernel_shape is None:
        return
    if len(kernel_shape) != len(found) or any(isinstance(s, int) and s != k for s, k in zip(found, kernel_shape)):
        raise n.malformed(f"kernel_shape {kernel_shape} of weights {w.type}")


@rule("Conv")
def conv(
    n: Node,
    x: Value,
    w: Value,
    b: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """Convolution over one to three spatial axes."""
    _check_kernel(n, w, kernel_shape)
    window = spatial(n, x, w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    y = ops.conv(x, w, strides=window.strides, dilations=window.dilations, padding=window.padding, groups=group)
    return _with_bias(y, b)


RULES = collected(globals())

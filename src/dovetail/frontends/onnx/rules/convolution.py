"""Convolutions."""

from __future__ import annotations

import itertools
from dataclasses import replace

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.spatial import ConvAttributes, per_axis, spatial, split_padding
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.ops import build


def _with_bias(y: Value, b: Value | None) -> Value:
    """One number for each channel is added."""
    return y if b is None else y + build.expand_dims(b, tuple(range(-(y.rank - 2), 0)))


def _check_kernel(n: Node, w: Value, kernel_shape: tuple[int, ...] | None) -> None:
    if kernel_shape is None:
        return
    pairs = list(itertools.zip_longest(w.shape[2:], kernel_shape))
    if any(size != wanted and (isinstance(size, int) or size is None or wanted is None) for size, wanted in pairs):
        raise n.malformed(f"kernel_shape {kernel_shape} of weights {w.type}")


@rule("Conv")
def conv(
    n: Node,
    x: Value,
    w: Value,
    b: Value | None = None,
    *,
    conv: ConvAttributes,
) -> Value:
    """Convolution over one to three spatial axes."""
    _check_kernel(n, w, conv.kernel_shape)
    window = conv.window(n, x, w)
    y = ops.conv(x, w, strides=window.strides, dilations=window.dilations, padding=window.padding, groups=conv.group)
    return _with_bias(y, b)


@rule("ConvTranspose")
def conv_transpose(
    n: Node,
    x: Value,
    w: Value,
    b: Value | None = None,
    *,
    conv: ConvAttributes,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
) -> Value:
    """Transposed convolution over one to three spatial axes."""
    _check_kernel(n, w, conv.kernel_shape)
    same = conv.auto_pad in ("SAME_UPPER", "SAME_LOWER")
    window = (replace(conv, auto_pad="VALID") if same else conv).window(n, x, w)
    extra = per_axis(n, x, output_padding, "output_padding", 0)
    padding = window.padding
    if output_shape or same:
        spread = [
            (length - 1) * stride + (size - 1) * far + 1 + more
            for length, stride, size, far, more in zip(
                x.shape[2:], window.strides, w.shape[2:], window.dilations, extra, strict=True
            )
        ]
        wanted = per_axis(n, x, output_shape, "output_shape") if output_shape else _times(x, window.strides)
        over = [found - size for found, size in zip(spread, wanted, strict=True)]
        if not output_shape and any(isinstance(o, int) and o < 0 for o in over):
            raise n.unsupported(
                f"auto_pad {conv.auto_pad} with a window that reaches less far than it steps",
                hint="give output_shape: the specification and its implementations differ",
            )
        # The result beyond the last tap is empty, and nothing is cut off there.
        extra = tuple(m + max(0, -o) if isinstance(o, int) else m for m, o in zip(extra, over, strict=True))
        padding = split_padding(
            [max(0, o) if isinstance(o, int) else o for o in over], upper=conv.auto_pad == "SAME_UPPER"
        )
    y = ops.conv_transpose(
        x,
        w,
        strides=window.strides,
        dilations=window.dilations,
        padding=padding,
        output_padding=extra,
        groups=conv.group,
    )
    return _with_bias(y, b)


def _times(x: Value, strides: tuple[int, ...]) -> tuple[Size, ...]:
    return tuple(length * stride for length, stride in zip(x.shape[2:], strides, strict=True))


@rule("DeformConv")
def deform_conv(
    n: Node,
    x: Value,
    w: Value,
    offset: Value,
    b: Value | None = None,
    mask: Value | None = None,
    *,
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    offset_group: int = 1,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """Convolution whose taps are moved by fractional offsets."""
    _check_kernel(n, w, kernel_shape)
    window = spatial(n, x, w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad="NOTSET")
    if mask is None:
        taps = product(w.shape[2:]) * offset_group
        mask = build.full((offset.shape[0], taps, *offset.shape[2:]), 1.0, offset.dtype)
    y = ops.deform_conv(
        x,
        w,
        offset,
        mask,
        strides=window.strides,
        dilations=window.dilations,
        padding=window.padding,
        groups=group,
        offset_groups=offset_group,
    )
    return _with_bias(y, b)

"""Operators from quantised numbers to quantised numbers: what they compute in floats, in the steps of the result."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.quantisation import dequantised, one_number, quantised
from dovetail.frontends.onnx.rule import collected, rule
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.onnx.rules.microsoft.fused import channels_first, channels_last
from dovetail.frontends.onnx.rules.quantised import conv_of_whole, rescaled_conv
from dovetail.frontends.onnx.spatial import spatial
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end


def _floats(n: Node, q: Value, scale: Value, zero_point: Value | None) -> Value:
    if one_number(scale).rank:
        raise n.unsupported(f"a scale of {scale.type}", hint="use one number")
    return dequantised(n, q, scale, zero_point, f32)


def _steps(n: Node, x: Value, scale: Value, zero_point: Value | None, like: Value) -> Value:
    if one_number(scale).rank:
        raise n.unsupported(f"a scale of {scale.type}", hint="use one number")
    return quantised(n, x, scale, zero_point, like.dtype)


@rule("QLinearAdd", domain=MICROSOFT)
def qlinear_add(
    n: Node,
    a: Value,
    a_scale: Value,
    a_zero_point: Value | None,
    b: Value,
    b_scale: Value,
    b_zero_point: Value | None,
    c_scale: Value,
    c_zero_point: Value | None = None,
) -> Value:
    """a + b of quantised tensors, quantised."""
    total = _floats(n, a, a_scale, a_zero_point) + _floats(n, b, b_scale, b_zero_point)
    return _steps(n, total, c_scale, c_zero_point, a)


@rule("QLinearMul", domain=MICROSOFT)
def qlinear_mul(
    n: Node,
    a: Value,
    a_scale: Value,
    a_zero_point: Value | None,
    b: Value,
    b_scale: Value,
    b_zero_point: Value | None,
    c_scale: Value,
    c_zero_point: Value | None = None,
) -> Value:
    """a * b of quantised tensors, quantised."""
    product = _floats(n, a, a_scale, a_zero_point) * _floats(n, b, b_scale, b_zero_point)
    return _steps(n, product, c_scale, c_zero_point, a)


@rule("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(
    n: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
) -> Value:
    """1 / (1 + exp(-x)) of a quantised tensor, quantised."""
    return _steps(n, ops.sigmoid(_floats(n, x, x_scale, x_zero_point)), y_scale, y_zero_point, x)


@rule("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(
    n: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    alpha: float = 0.009999999776482582,
) -> Value:
    """A quantised tensor, times alpha where it is negative, quantised."""
    y = ops.leaky_relu(_floats(n, x, x_scale, x_zero_point), slope=alpha)
    return _steps(n, y, y_scale, y_zero_point, x)


@rule("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    n: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value,
    *,
    axis: int = -1,
    opset: int,
) -> Value:
    """softmax of a quantised tensor, quantised; along an axis, or up to opset 12 over all axes from it on."""
    floats = _floats(n, x, x_scale, x_zero_point)
    at = axis_from_end(axis, x.rank)
    if opset >= 13 or at == -1:
        y = library.softmax.body(floats, axis=at)
    else:
        y = build.reshape(library.softmax.body(ops.merge(floats, axis=-1, count=-at), axis=-1), x.shape)
    return _steps(n, y, y_scale, y_zero_point, x)


@rule("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(n: Node, y_scale: Value, y_zero_point: Value, *parts: Value, axis: int) -> Value:
    """Concatenation of quantised tensors in the scale of the result; each comes with its scale and zero point."""
    if not parts or len(parts) % 3:
        raise n.malformed(f"{len(parts)} inputs", hint="give a tensor, a scale and a zero point for each part")
    floats = [_floats(n, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return _steps(n, ops.concat(*floats, axis=axis), y_scale, y_zero_point, y_zero_point)


@rule("QLinearWhere", domain=MICROSOFT)
def qlinear_where(
    n: Node,
    condition: Value,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y: Value,
    y_scale: Value,
    y_zero_point: Value,
    z_scale: Value,
    z_zero_point: Value,
) -> Value:
    """x where the condition holds and y elsewhere, of quantised tensors, quantised."""
    chosen = ops.where(condition, _floats(n, x, x_scale, x_zero_point), _floats(n, y, y_scale, y_zero_point))
    return _steps(n, chosen, z_scale, z_zero_point, z_zero_point)


@rule("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(
    n: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    axes: tuple[int, ...],
    keepdims: bool,
) -> Value:
    """The mean over axes of a quantised tensor, quantised."""
    floats = _floats(n, x, x_scale, x_zero_point)
    named = axes or tuple(range(x.rank))
    mean = ops.reduce_mean(floats, axes=named)
    return _steps(n, mean if keepdims else build.squeeze_dims(mean, named), y_scale, y_zero_point, x)


@rule("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    n: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    channels_last_: bool = False,
    count_include_pad: bool = False,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """The mean over each window of a quantised tensor, quantised."""
    if ceil_mode and auto_pad != "NOTSET":
        raise n.unsupported(f"ceil_mode with auto_pad {auto_pad}", hint="write the pads")
    floats = _floats(n, x, x_scale, x_zero_point)
    image = channels_first(floats) if channels_last_ else floats
    window = spatial(n, image, kernel_shape, strides=strides, dilations=None, pads=pads, auto_pad=auto_pad)
    y = ops.average_pool(
        image,
        window=kernel_shape,
        strides=window.strides,
        padding=window.padding,
        ceil=ceil_mode,
        count_padding=count_include_pad,
    )
    return _steps(n, channels_last(y) if channels_last_ else y, y_scale, y_zero_point, x)


@rule("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    n: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    *,
    channels_last_: bool = False,
) -> Value:
    """The mean of each channel of a quantised tensor, quantised."""
    if x.rank < 3:
        raise n.malformed(f"a pool of {x.type}", hint="it takes [n, c, *spatial]")
    axes = tuple(range(1, x.rank - 1)) if channels_last_ else tuple(range(2, x.rank))
    mean = ops.reduce_mean(_floats(n, x, x_scale, x_zero_point), axes=axes)
    return _steps(n, mean, y_scale, y_zero_point, x)


@rule("QLinearConv", domain=MICROSOFT)
def qlinear_conv(
    n: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    b: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last_: bool = False,
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """The convolution of a quantised image with quantised weights and a bias in i32, quantised."""
    product = conv_of_whole(
        n,
        channels_first(x) if channels_last_ else x,
        w,
        x_zero_point,
        w_zero_point,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    y = rescaled_conv(product, x_scale, w_scale, y_scale, y_zero_point, b)
    return channels_last(y) if channels_last_ else y


RULES = collected(globals())

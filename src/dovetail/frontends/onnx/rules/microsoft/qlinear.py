"""Operators from quantised numbers to quantised numbers: computed in floats, then quantised like the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dovetail import library, ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Rule, rule
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.onnx.rules.microsoft.fused import channels_first, channels_last
from dovetail.frontends.onnx.rules.quantised import integer_conv, rescaled_conv
from dovetail.frontends.shared.quantisation import dequantised, one_number, quantised
from dovetail.frontends.shared.spatial import ConvAttributes, spatial
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


def quantised_rule(
    op_type: str, *, result: str = "y", required: Sequence[str] = ()
) -> Callable[[Callable[..., Value]], tuple[Rule, ...]]:
    """Declare an operator on quantised tensors by what it computes in floats.

    Each input x becomes x, x_scale and x_zero_point; after all of them come the scale and the zero point of the result,
    which has the dtype of the first input. Zero points may be left out unless they are `required`.
    """

    def declare(function: Callable[..., Value]) -> tuple[Rule, ...]:
        _, *parameters = inspect.signature(function).parameters.values()
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        inputs = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        names = [f"{name}{part}" for name in inputs for part in ("", "_scale", "_zero_point")]
        names += [f"{result}_scale", f"{result}_zero_point"]

        def on_steps(n: Node, *operands: Any, **attributes: Any) -> Value:
            given: list[Any] = [*operands, *[None] * (len(names) - len(operands))]
            floats = [_floats(n, *given[i : i + 3]) for i in range(0, 3 * len(inputs), 3)]
            return _steps(n, function(n, *floats, **attributes), given[-2], given[-1], given[0])

        optional = {name for name in names if name.endswith("_zero_point")} - {*required}
        kinds = {name: "Value | None" if name in optional else "Value" for name in names}
        # Rules are read by signature: this one is written out as if by hand.
        listed = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("n", *names)]
        signature = inspect.Signature([*listed, *keywords])
        vars(on_steps)["__signature__"] = signature
        on_steps.__annotations__ = {"n": "Node", **kinds, **{p.name: p.annotation for p in keywords}}
        on_steps.__doc__ = function.__doc__
        return rule(op_type, domain=MICROSOFT)(on_steps)

    return declare


@quantised_rule("QLinearAdd", result="c")
def qlinear_add(n: Node, a: Value, b: Value) -> Value:
    """a + b of quantised tensors, quantised."""
    return a + b


@quantised_rule("QLinearMul", result="c")
def qlinear_mul(n: Node, a: Value, b: Value) -> Value:
    """a * b of quantised tensors, quantised."""
    return a * b


@quantised_rule("QLinearSigmoid")
def qlinear_sigmoid(n: Node, x: Value) -> Value:
    """1 / (1 + exp(-x)) of a quantised tensor, quantised."""
    return ops.sigmoid(x)


@quantised_rule("QLinearLeakyRelu")
def qlinear_leaky_relu(n: Node, x: Value, *, alpha: float = 0.009999999776482582) -> Value:
    """A quantised tensor, times alpha where it is negative, quantised."""
    return ops.leaky_relu(x, slope=alpha)


@quantised_rule("QLinearSoftmax", required=("y_zero_point",))
def qlinear_softmax(n: Node, x: Value, *, axis: int = -1, opset: int) -> Value:
    """softmax of a quantised tensor, quantised; along an axis, or up to opset 12 over all axes from it on."""
    at = axis_from_end(axis, x.rank)
    if opset >= 13 or at == -1:
        return library.softmax.body(x, axis=at)
    return build.reshape(library.softmax.body(ops.merge(x, axis=-1, count=-at), axis=-1), x.shape)


@quantised_rule("QLinearReduceMean")
def qlinear_reduce_mean(n: Node, x: Value, *, axes: tuple[int, ...], keepdims: bool) -> Value:
    """The mean over axes of a quantised tensor, quantised."""
    named = axes or tuple(range(x.rank))
    mean = ops.reduce_mean(x, axes=named)
    return mean if keepdims else build.squeeze_dims(mean, named)


@quantised_rule("QLinearAveragePool")
def qlinear_average_pool(
    n: Node,
    x: Value,
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
    image = channels_first(x) if channels_last_ else x
    window = spatial(n, image, kernel_shape, strides=strides, dilations=None, pads=pads, auto_pad=auto_pad)
    y = ops.average_pool(
        image,
        window=kernel_shape,
        strides=window.strides,
        padding=window.padding,
        ceil=ceil_mode,
        count_padding=count_include_pad,
    )
    return channels_last(y) if channels_last_ else y


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
    conv: ConvAttributes,
    channels_last_: bool = False,
) -> Value:
    """The convolution of a quantised image with quantised weights and a bias in i32, quantised."""
    product = integer_conv(
        n,
        channels_first(x) if channels_last_ else x,
        w,
        x_zero_point,
        w_zero_point,
        conv,
    )
    y = rescaled_conv(product, x_scale, w_scale, y_scale, y_zero_point, b)
    return channels_last(y) if channels_last_ else y

"""Quantised numbers: to and from them, and products of them."""

from __future__ import annotations

from typing import Any

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Rule, rule
from dovetail.frontends.onnx.rules import convolution
from dovetail.frontends.shared.quantisation import (
    along,
    dequantised,
    dynamic,
    minus_zero_point,
    one_number,
    quantised,
    saturated,
)
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.shared.spatial import ConvAttributes
from dovetail.ir.dtype import FLOATS, DType, f32, u8
from dovetail.ir.value import Value
from dovetail.ops import build


def one(rules: tuple[Rule, ...], n: Node, *operands: Value | None, **attributes: Any) -> Value:
    """What the rule of another operator with one output makes of these operands."""
    made = rules[0](n, *operands, **attributes)
    assert isinstance(made, Value)
    return made


@rule("QuantizeLinear", since=10)
def quantize_linear(
    n: Node,
    x: Value,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DType | None = None,
    precision: DType | None = None,
    saturate: bool = True,
) -> Value:
    """x / scale + zero_point in a narrow type, for a tensor, along an axis, or in blocks."""
    dtype = u8 if output_dtype is None else output_dtype
    if y_zero_point is not None:
        if output_dtype is not None and y_zero_point.dtype is not output_dtype:
            raise n.malformed(f"a zero point of {y_zero_point.dtype.name} for {output_dtype.name}")
        dtype = y_zero_point.dtype
    divided = precision or (y_scale.dtype if y_scale.dtype in FLOATS else x.dtype)
    if divided not in FLOATS:
        divided = f32
    x, y_scale = (v if v.dtype is divided else ops.cast(v, dtype=divided) for v in (x, y_scale))
    return quantised(n, x, y_scale, y_zero_point, dtype, axis=axis, block=block_size, saturate=saturate)


@rule("DequantizeLinear", since=10)
def dequantize_linear(
    n: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DType | None = None,
) -> Value:
    """(x - zero_point) * scale, for a tensor, along an axis, or in blocks."""
    if x_zero_point is not None and x_zero_point.dtype is not x.dtype:
        raise n.malformed(f"a zero point of {x_zero_point.dtype.name} for {x.dtype.name}")
    dtype = output_dtype or x_scale.dtype
    return dequantised(n, x, x_scale, x_zero_point, dtype, axis=axis, block=block_size)


@rule("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(n: Node, x: Value) -> Made:
    """x in u8, with the scale and zero point of its range."""
    return dynamic(x)


def _row(n: Node, steps: Value, x: Value) -> Value:
    """Scales or zero points of a left operand: one number, or one for each row."""
    steps = one_number(steps)
    if steps.rank == 1:
        return ops.unsqueeze(steps, axes=(-1,)) if x.rank > 1 else _refused(n, steps, x)
    return steps


def _column(n: Node, steps: Value, x: Value) -> Value:
    """Scales or zero points of a right operand: one number, or one for each column."""
    steps = one_number(steps)
    return _refused(n, steps, x) if steps.rank and x.rank < 2 else steps


def _refused(n: Node, steps: Value, x: Value) -> Value:
    raise n.malformed(f"quantisation by {steps.type} of {x.type}")


def integer_product(n: Node, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """The matrix product above the zero points, in i32."""
    if a.rank == 0 or b.rank == 0:
        raise n.malformed("a product with a number")
    left = minus_zero_point(a, None if a_zero is None else _row(n, a_zero, a))
    right = minus_zero_point(b, None if b_zero is None else _column(n, b_zero, b))
    product = (left if a.rank > 1 else ops.unsqueeze(left, axes=(-2,))) @ (
        right if b.rank > 1 else ops.unsqueeze(right, axes=(-1,))
    )
    gone = tuple(axis for axis, of in ((-2, a), (-1, b)) if of.rank == 1)
    return build.squeeze_dims(product, gone) if gone else product


@rule("MatMulInteger", since=10)
def matmul_integer(
    n: Node, a: Value, b: Value, a_zero_point: Value | None = None, b_zero_point: Value | None = None
) -> Value:
    """The matrix product of bytes above their zero points, in i32."""
    return integer_product(n, a, b, a_zero_point, b_zero_point)


@rule("QLinearMatMul", since=10)
def qlinear_matmul(
    n: Node,
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
) -> Value:
    """The matrix product of quantised matrices, quantised."""
    y_scale, y_zero_point = one_number(y_scale), one_number(y_zero_point)
    if y_scale.rank or y_zero_point.rank:
        raise n.unsupported(f"a result quantised by {y_scale.type}", hint="quantise it by one number")
    product = integer_product(n, a, b, a_zero_point, b_zero_point)
    left, right, last = (ops.cast(s, dtype=f32) for s in (_row(n, a_scale, a), _column(n, b_scale, b), y_scale))
    return saturated(ops.cast(product, dtype=f32) * (left * right / last), y_zero_point, y_zero_point.dtype)


def integer_conv(
    n: Node, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None, conv: ConvAttributes
) -> Value:
    """The convolution above the zero points, in i32; the padding counts as the zero point."""
    if x_zero is not None and one_number(x_zero).rank:
        raise n.unsupported(f"a zero point of {x_zero.type} for the input", hint="use one number")
    image = minus_zero_point(x, None if x_zero is None else one_number(x_zero))
    weights = minus_zero_point(w, None if w_zero is None else along(w_zero, w.rank, 0))
    return one(convolution.conv, n, image, weights, conv=conv)


@rule("ConvInteger", since=10)
def conv_integer(
    n: Node,
    x: Value,
    w: Value,
    x_zero_point: Value | None = None,
    w_zero_point: Value | None = None,
    *,
    conv: ConvAttributes,
) -> Value:
    """The convolution of bytes above their zero points, in i32."""
    return integer_conv(
        n,
        x,
        w,
        x_zero_point,
        w_zero_point,
        conv,
    )


def rescaled_conv(
    product: Value, x_scale: Value, w_scale: Value, y_scale: Value, y_zero_point: Value, bias: Value | None
) -> Value:
    """A convolution in i32 in the steps of its result; weights may have one scale for each channel."""
    if bias is not None:
        product = product + along(bias, product.rank, 1)
    factor = one_number(x_scale) * along(w_scale, product.rank, 1) / one_number(y_scale)
    return saturated(ops.cast(product, dtype=f32) * factor, one_number(y_zero_point), y_zero_point.dtype)


@rule("QLinearConv", since=10)
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
) -> Value:
    """The convolution of a quantised image with quantised weights and a bias in i32, quantised."""
    product = integer_conv(
        n,
        x,
        w,
        x_zero_point,
        w_zero_point,
        conv,
    )
    return rescaled_conv(product, x_scale, w_scale, y_scale, y_zero_point, b)

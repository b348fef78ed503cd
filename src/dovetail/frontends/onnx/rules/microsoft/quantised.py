"""Products of quantised matrices, and numbers to and from their quantised form."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.onnx.rules.quantised import integer_product
from dovetail.frontends.shared.quantisation import dequantised, dynamic, one_number, quantised, saturated
from dovetail.ir.dtype import u8
from dovetail.ir.value import Value


@rule("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(n: Node, x: Value, y_scale: Value, y_zero_point: Value | None = None, *, axis: int = 1) -> Value:
    """x / scale + zero_point in a narrow type, for a tensor or along an axis."""
    return quantised(n, x, y_scale, y_zero_point, u8 if y_zero_point is None else y_zero_point.dtype, axis=axis)


@rule("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(n: Node, x: Value, x_scale: Value, x_zero_point: Value | None = None, *, axis: int = 1) -> Value:
    """(x - zero_point) * scale, for a tensor or along an axis."""
    return dequantised(n, x, x_scale, x_zero_point, x_scale.dtype, axis=axis)


def scaled_product(
    n: Node,
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero: Value | None,
    b_zero: Value | None,
    bias: Value | None,
) -> Value:
    """The matrix product of quantised matrices as floats, plus a bias."""
    a_scale, b_scale = one_number(a_scale), one_number(b_scale)
    if a_scale.rank:
        raise n.unsupported(f"a left side with scales of {a_scale.type}", hint="use one scale for all of it")
    product = ops.cast(integer_product(n, a, b, a_zero, b_zero), dtype=a_scale.dtype)
    y = product * (a_scale * b_scale)
    return y if bias is None else y + bias


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    n: Node,
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero_point: Value | None = None,
    b_zero_point: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """The matrix product of quantised matrices as floats, plus a bias."""
    return scaled_product(n, a, b, a_scale, b_scale, a_zero_point, b_zero_point, bias)


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    n: Node, a: Value, b: Value, b_scale: Value, b_zero_point: Value | None = None, bias: Value | None = None
) -> Value:
    """The matrix product of a, quantised by its range, with a quantised matrix, as floats, plus a bias."""
    q, scale, zero = dynamic(a)
    return scaled_product(n, q, b, scale, b_scale, zero, b_zero_point, bias)


@rule("QGemm", domain=MICROSOFT)
def q_gemm(
    n: Node,
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    c: Value | None = None,
    y_scale: Value | None = None,
    y_zero_point: Value | None = None,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
) -> Value:
    """alpha * (a @ b + c) of quantised matrices, as floats or quantised."""
    if one_number(a_scale).rank or one_number(a_zero_point).rank:
        raise n.unsupported(f"a left side with scales of {a_scale.type}", hint="use one scale for all of it")
    left = ops.permute(a, order=(-1, -2)) if transA else a
    right = ops.permute(b, order=(-1, -2)) if transB else b
    product = integer_product(n, left, right, a_zero_point, b_zero_point)
    if c is not None:
        product = product + c
    factor = one_number(a_scale) * one_number(b_scale)
    if alpha != 1.0:
        factor = factor * alpha
    floats = ops.cast(product, dtype=factor.dtype)
    if y_scale is None:
        return floats * factor
    dtype = a.dtype if y_zero_point is None else y_zero_point.dtype
    zero = None if y_zero_point is None else one_number(y_zero_point)
    return saturated(floats * (factor / one_number(y_scale)), zero, dtype)

"""residual_layer_norm: the residual add and the norm that reads it, in one pass."""

from __future__ import annotations

from typing import Literal

from dovetail.declare import Change, fused_op, typed
from dovetail.ir.value import Value
from dovetail.library.layer_norm import layer_norm
from dovetail.library.norms import Precision, is_a_row


@fused_op(shapes="x[*, n] r[*, n] gain[n] bias[n] b[n]")
def residual_layer_norm(
    x: Value,
    r: Value,
    gain: Value | None = None,
    bias: Value | None = None,
    b: Value | None = None,
    *,
    eps: float,
    precision: Precision = "own",
    keep_sum: Literal[False, True] = False,
) -> Value | tuple[Value, ...]:
    """layer_norm(x + r), or of x + b + r; the sum is the second result where someone else reads it."""
    total = (x if b is None else x + b) + r
    y = layer_norm(total, gain, bias, eps=eps, precision=precision)
    return (y, total) if keep_sum else y


@residual_layer_norm.requires(
    reason="{x.type} and {r.type} are added; the kernel reads both row by row",
    hint="pass the smaller operand in the shape of the other, or leave the add outside",
)
def operands_have_one_shape(x: Value, r: Value) -> bool:
    return x.shape == r.shape


@residual_layer_norm.remedy(operands_have_one_shape)
def operands_in_one_shape(x: Value, r: Value) -> Change:
    """Both operands come in the shape of their sum."""
    shape = (x + r).shape
    return {"x": typed(x, shape=shape), "r": typed(r, shape=shape)}


@residual_layer_norm.requires(
    reason="the bias is {b.type} and x is {x.type}; one vector is added to every row",
    hint="give the bias the shape [n] of the last axis",
)
def bias_is_a_vector(x: Value, b: Value | None) -> bool:
    return is_a_row(b, x)


@residual_layer_norm.remedy(bias_is_a_vector)
def bias_as_a_vector(x: Value, b: Value) -> Change:
    """The bias is one vector for all rows."""
    return {"b": typed(b, shape=x.shape[-1:])}

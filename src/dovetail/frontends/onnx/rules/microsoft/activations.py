"""Activations with what stands around them."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end

MICROSOFT = "com.microsoft"


@rule("Gelu", domain=MICROSOFT)
def gelu(n: Node, x: Value) -> Value:
    """Gaussian error linear unit, exact."""
    return library.gelu.body(x, form="erf")


@rule("BiasGelu", domain=MICROSOFT)
def bias_gelu(n: Node, x: Value, bias: Value) -> Value:
    """gelu(x + bias)"""
    return library.gelu.body(x + bias, form="erf")


@rule("FastGelu", domain=MICROSOFT)
def fast_gelu(n: Node, x: Value, bias: Value | None = None) -> Value:
    """gelu by tanh, of x or of x + bias."""
    return library.gelu.body(x if bias is None else x + bias, form="tanh")


@rule("QuickGelu", domain=MICROSOFT)
def quick_gelu(n: Node, x: Value, *, alpha: float = 1.7020000219345093) -> Value:
    """x * sigmoid(alpha * x)"""
    return library.silu.body(x) if alpha == 1.0 else x * ops.sigmoid(alpha * x)


@rule("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(n: Node, x: Value, bias: Value) -> Value:
    """The first half of x + bias times the gelu of the second half."""
    left, right = (ops.part(x + bias, axis=-1, index=i, parts=2) for i in (0, 1))
    return left * library.gelu.body(right, form="erf")


@rule("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(n: Node, x: Value, bias: Value, *, axis: int = 1, is_inner_broadcast: int) -> Value:
    """softmax(x + bias) over all axes from `axis` on."""
    # How the bias is stretched follows from its shape; is_inner_broadcast says it once more, for kernels.
    total = x + bias
    if total.shape != x.shape:
        raise n.malformed(f"a bias of {bias.type} for {x.type}")
    count = -axis_from_end(axis, x.rank)
    if count == 1:
        return library.softmax.body(total, axis=-1)
    return build.reshape(library.softmax.body(ops.merge(total, axis=-1, count=count), axis=-1), x.shape)

"""linear: a matmul with bias and activation in its epilogue."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.gelu import gelu
from dovetail.library.silu import silu

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"]


def activation(act: Activation, y: Value) -> Value:
    """The activation by name."""
    match act:
        case "none":
            return y
        case "relu":
            return ops.relu(y)
        case "gelu":
            return gelu(y)
        case "gelu_tanh":
            return gelu(y, form="tanh")
        case "silu":
            return silu(y)
        case "tanh":
            return ops.tanh(y)
        case "sigmoid":
            return ops.sigmoid(y)


@fused_op(shapes="x[*, m, k] w[k, n] b[n]")
def linear(x: Value, w: Value, b: Value | None = None, *, act: Activation = "none") -> Value:
    """Matmul with bias and activation in its epilogue: one kernel, one write."""
    y = x @ w
    if b is not None:
        y = y + b
    return activation(act, y)


@linear.requires(
    reason="the weight is {w.type}; the kernel takes one matrix for the whole batch",
    hint="keep batched products as matmul",
)
def weight_is_a_matrix(w: Value) -> bool:
    return w.rank == 2


@linear.requires(
    reason="the bias is {b.type}; the epilogue adds one vector of length n to every row",
    hint="reshape the bias to [n], or leave the add outside",
)
def bias_is_a_vector(w: Value, b: Value | None) -> bool:
    return b is None or (b.rank == 1 and b.shape[0] == w.shape[-1])

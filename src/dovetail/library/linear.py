"""linear: a matmul with bias and activation in its epilogue."""

from __future__ import annotations

from dovetail.declare import Change, fused_op, typed
from dovetail.ir.value import Value
from dovetail.library.activation import Activation, activation


@fused_op(shapes="x[*, m, k] w[k, n] b[n]")
def linear(x: Value, w: Value, b: Value | None = None, *, act: Activation = "none") -> Value:
    """Matmul with bias and activation in its epilogue: one kernel, one write."""
    y = x @ w
    if b is not None:
        y = y + b
    return activation(act, y)


@linear.requires(
    reason="the weight is {w.type}; the kernel takes one matrix for the whole batch",
)
def weight_is_a_matrix(w: Value) -> bool:
    return w.rank == 2


@linear.requires(
    reason="the bias is {b.type}, and the product has {w.shape[1]} columns; one vector is added to every row",
    hint="give the bias the shape of the columns",
)
def bias_is_a_vector(w: Value, b: Value | None) -> bool:
    return b is None or b.shape == w.shape[-1:]


@linear.remedy(bias_is_a_vector)
def bias_as_a_vector(w: Value, b: Value) -> Change:
    """The bias is one vector for all rows."""
    return {"b": typed(b, shape=w.shape[-1:])}

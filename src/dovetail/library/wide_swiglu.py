"""wide_swiglu: one matmul whose columns are both halves of a gated product."""

from __future__ import annotations

from dovetail.declare import Change, fused_op, typed
from dovetail.ir.value import Value
from dovetail.library.activation import Gate, activation
from dovetail.library.gated_product import Half, halves


@fused_op(shapes="x[*, m, k] w[k, 2*n] b[2*n]")
def wide_swiglu(x: Value, w: Value, b: Value | None = None, *, act: Gate = "silu", gate: Half = "second") -> Value:
    """The gated product of x @ w + b in the epilogue of the matmul: one kernel, half the width written."""
    first, second = halves(x @ w if b is None else x @ w + b)
    return first * activation(act, second) if gate == "second" else second * activation(act, first)


@wide_swiglu.requires(
    reason="the weight is {w.type}; the kernel takes one matrix for the whole batch",
)
def weight_is_a_matrix(w: Value) -> bool:
    return w.rank == 2


@wide_swiglu.requires(
    reason="the bias is {b.type}, and the product has {w.shape[1]} columns; one vector is added to every row",
    hint="give the bias the shape of the columns",
)
def bias_is_a_vector(w: Value, b: Value | None) -> bool:
    return b is None or b.shape == w.shape[-1:]


@wide_swiglu.remedy(bias_is_a_vector)
def bias_as_a_vector(w: Value, b: Value) -> Change:
    """The bias is one vector for all rows."""
    return {"b": typed(b, shape=w.shape[-1:])}

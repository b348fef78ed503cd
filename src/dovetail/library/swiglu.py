"""swiglu: two matmuls of one input, one of them activated, and their product. geglu and reglu are variants."""

from __future__ import annotations

from dovetail.declare import Change, every, fused_op, typed
from dovetail.ir.value import Value
from dovetail.library.activation import Gate, activation


@fused_op(shapes="x[*, m, k] up[k, n] gate[k, n]")
def swiglu(x: Value, up: Value, gate: Value, *, act: Gate = "silu") -> Value:
    """(x @ up) * act(x @ gate): one wide matmul with the product in its epilogue."""
    return (x @ up) * activation(act, x @ gate)


@swiglu.requires(
    reason="the weights are {up.type} and {gate.type}; the kernel takes one matrix of each for the whole batch",
)
def weights_are_matrices(up: Value, gate: Value) -> bool:
    return up.rank == 2 and gate.rank == 2


@swiglu.requires(
    reason="the weights are {up.type} and {gate.type}; the kernel multiplies column by column",
    hint="widen the narrower weight",
)
def weights_are_equally_wide(up: Value, gate: Value) -> bool:
    return up.shape[-1] == gate.shape[-1]


@swiglu.remedy(weights_are_equally_wide)
def weights_as_wide_as_the_product(up: Value, gate: Value, result: Value) -> Change:
    """Both weights have all columns of the product."""
    return every(lambda w: typed(w, shape=(w.shape[0], result.shape[-1])), up=up, gate=gate)

"""Feed-forward blocks: two matmuls around an activation, gated, or one of several experts."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare.block import block
from dovetail.ir.value import Value
from dovetail.library.activation import Activation, Gate, activation
from dovetail.library.linear import linear
from dovetail.library.softmax import softmax
from dovetail.library.swiglu import swiglu
from dovetail.ops.deferred_shape import dtype_of, size_of


@block(shapes="x[*, m, k] up[k, n] up_bias[n] down[n, k] down_bias[k]")
def ffn(
    x: Value,
    up: Value,
    up_bias: Value | None,
    down: Value,
    down_bias: Value | None = None,
    *,
    act: Activation = "gelu",
) -> Value:
    """Up, activate, down."""
    hidden = linear.body(x, up, up_bias, act=act)
    return linear.body(hidden, down, down_bias)


@block(shapes="x[*, m, k] up[k, n] gate[k, n] down[n, k]")
def swiglu_ffn(x: Value, up: Value, gate: Value, down: Value, *, act: Gate = "silu") -> Value:
    """Up and gate, their product, down."""
    return swiglu.body(x, up, gate, act=act) @ down


@block(shapes="x[m, k] router[k, e] up[e, k, n] gate[e, k, n] down[e, n, k]")
def moe_ffn(x: Value, router: Value, up: Value, gate: Value, down: Value, *, chosen: int, act: Gate = "silu") -> Value:
    """Gated experts on every token, of which the router weighs the `chosen` best; the others count nothing."""
    scores = softmax(x @ router)
    best = ops.top_k(scores, k=chosen, axis=-1)[1]
    experts = ops.iota(size=size_of(router, -1))
    picked = ops.reduce_any(ops.equal(ops.unsqueeze(best, axes=(-1,)), experts), axes=(-2,))
    weights = scores * ops.cast(ops.squeeze(picked, axes=(-2,)), dtype=dtype_of(scores))
    weights = weights / ops.reduce_sum(weights, axes=(-1,))
    hidden = (x @ up) * activation(act, x @ gate)
    per_expert = ops.unsqueeze(ops.permute(weights, order=(-1, -2)), axes=(-1,))
    return ops.squeeze(ops.reduce_sum((hidden @ down) * per_expert, axes=(-3,)), axes=(-3,))

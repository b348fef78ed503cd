"""scores: how much each query attends to each key, before masks."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value


@fused_op(shapes="q[*, h, sq, d] k[*, h, sk, d]", stage="recognise")
def scores(q: Value, k: Value, *, scale: float) -> Value:
    """q @ kᵀ * scale: one matmul that scales what it writes, wherever the scale was written."""
    return (q @ swapped(k)) * scale


def swapped(k: Value) -> Value:
    """Keys as columns."""
    return ops.permute(k, order=(-1, -2))


@scores.spelling
def divided(q: Value, k: Value, *, scale: float) -> Value:
    return (q @ swapped(k)) / (1.0 / scale)


@scores.spelling
def scale_on_queries(q: Value, k: Value, *, scale: float) -> Value:
    return (q * scale) @ swapped(k)


@scores.spelling
def queries_divided(q: Value, k: Value, *, scale: float) -> Value:
    return (q / (1.0 / scale)) @ swapped(k)


@scores.spelling
def root_on_both_sides(q: Value, k: Value, *, scale: float) -> Value:
    root = scale**0.5
    return (q * root) @ (swapped(k) * root)


@scores.requires(
    reason="the right side is {k.type}, one matrix for the whole batch",
    hint="nothing to do: a product with a weight is no attention",
)
def keys_are_batched(k: Value) -> bool:
    return k.rank > 2

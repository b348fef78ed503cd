"""scores: how much each query attends to each key, before masks."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.declare import UnwrittenError, fused_op
from dovetail.ir import leaf
from dovetail.ir.value import Value

Scaled = Literal["product", "queries", "both"]
"""What is multiplied: the product, the queries, or queries and keys, each by the root of the scale.

In f16 a product can overflow that is in range once it is scaled, so that a scale stays where it was written.
"""


@fused_op(shapes="q[*, h, sq, d] k[*, h, sk, d]", stage="recognise")
def scores(q: Value, k: Value, *, scale: float, scaled: Scaled = "product") -> Value:
    """q @ kᵀ * scale: one matmul that scales what it writes, or what it reads."""
    if scaled == "product":
        return (q @ swapped(k)) * scale
    if scaled == "queries":
        return (q * scale) @ swapped(k)
    root = scale**0.5
    return (q * root) @ (swapped(k) * root)


def swapped(k: Value) -> Value:
    """Keys as columns."""
    return ops.permute(k, order=(-1, -2))


@scores.spelling
def divided(q: Value, k: Value, *, scale: float, scaled: Scaled = "product") -> Value:
    """Divided by one over the scale."""
    if scaled == "product":
        return (q @ swapped(k)) / (1.0 / scale)
    if scaled == "queries":
        return (q / (1.0 / scale)) @ swapped(k)
    raise UnwrittenError("both sides divided by a root", hint="use the body")


@scores.requires(
    reason="the right side is {k.type}, one matrix for the whole batch",
)
def keys_are_batched(q: Value, k: Value) -> bool:
    return k.rank > 2 or (q.rank == 2 and not _is_weight(k))


def _is_weight(k: Value) -> bool:
    """Whether keys are a parameter or a constant, perhaps seen through views."""
    while len(k.operands) == 1:
        k = k.operands[0]
    return k.op is leaf.PARAM or k.op is leaf.CONST

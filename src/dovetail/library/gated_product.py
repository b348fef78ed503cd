"""gated_product: one half of the last axis times the activated other half."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.activation import Gate, activation

Half = Literal["second", "first"]


def halves(y: Value) -> tuple[Value, Value]:
    """The two halves of the last axis."""
    return ops.part(y, axis=-1, index=0, parts=2), ops.part(y, axis=-1, index=1, parts=2)


@fused_op(shapes="y[*, 2*n]")
def gated_product(y: Value, *, act: Gate = "silu", gate: Half = "second") -> Value:
    """One half of the last axis times the activation of the other, which is the gate: one pass."""
    first, second = halves(y)
    return first * activation(act, second) if gate == "second" else second * activation(act, first)

"""silu: x * sigmoid(x)."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value


@fused_op(shapes="x[*]", stage="recognise")
def silu(x: Value) -> Value:
    """x * sigmoid(x) in one pass."""
    return x * ops.sigmoid(x)

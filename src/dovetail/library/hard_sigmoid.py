"""hard_sigmoid: a straight line through a half, between 0 and 1."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value

SLOPE = 1 / 6
"""That of networks for small machines."""


@fused_op(shapes="x[*]", stage="recognise")
def hard_sigmoid(x: Value) -> Value:
    """x / 6 + 1 / 2 between 0 and 1, in one pass."""
    return ops.hard_sigmoid(x, alpha=SLOPE)


@hard_sigmoid.spelling
def sixth_of_a_clip(x: Value) -> Value:
    """x + 3 between 0 and 6, over 6."""
    return ops.relu6(x + 3.0) / 6.0


@hard_sigmoid.spelling
def clip_times_a_sixth(x: Value) -> Value:
    """x + 3 between 0 and 6, times a sixth."""
    return ops.relu6(x + 3.0) * SLOPE

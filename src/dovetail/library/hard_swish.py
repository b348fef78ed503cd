"""hard_swish: x * hard_sigmoid(x)."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.hard_sigmoid import SLOPE, hard_sigmoid


@fused_op(shapes="x[*]", stage="recognise")
def hard_swish(x: Value) -> Value:
    """x * hard_sigmoid(x) in one pass."""
    return x * hard_sigmoid(x)


@hard_swish.spelling
def sixth_of_a_product(x: Value) -> Value:
    """x times what x + 3 is between 0 and 6, over 6."""
    return x * ops.relu6(x + 3.0) / 6.0


@hard_swish.spelling
def product_times_a_sixth(x: Value) -> Value:
    """x times what x + 3 is between 0 and 6, times a sixth."""
    return x * ops.relu6(x + 3.0) * SLOPE

"""log_sum_exp: the logarithm of a sum of exponentials, which overflows nowhere."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.softmax import along


@fused_op(shapes="x[*, m, n] axis=-1", stage="recognise")
def log_sum_exp(x: Value, *, axis: int = -1) -> Value:
    """max + log(sum(exp(x - max))) along an axis, which stays: one pass that writes a number for each row."""
    highest = ops.reduce_max(x, axes=along(axis))
    return ops.log(ops.reduce_sum(ops.exp(x - highest), axes=along(axis))) + highest


@log_sum_exp.gradient
def by_the_result(g: Value, y: Value, x: Value, *, axis: int) -> tuple[Value]:
    """g * exp(x - y): the weights are computed again, element by element, and not saved."""
    return (g * ops.exp(x - y),)

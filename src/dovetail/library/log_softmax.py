"""log_softmax: the logarithm of softmax, without its rounding to 0."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.softmax import along, softmax


@fused_op(shapes="x[*, m, n] axis=-1", stage="recognise")
def log_softmax(x: Value, *, axis: int = -1) -> Value:
    """x - max - log(sum(exp(x - max))) along an axis: one pass."""
    shifted = x - ops.reduce_max(x, axes=along(axis))
    return shifted - ops.log(ops.reduce_sum(ops.exp(shifted), axes=along(axis)))


@log_softmax.gradient
def by_the_result(g: Value, y: Value, x: Value, *, axis: int) -> tuple[Value]:
    """g - exp(y) * sum(g): without the detour through the maximum."""
    return (g - ops.exp(y) * ops.reduce_sum(g, axes=along(axis)),)


@log_softmax.spelling
def log_of_softmax(x: Value, *, axis: int = -1) -> Value:
    return ops.log(softmax(x, axis=axis))

"""softmax: exponentials along an axis, divided by their sum."""

from __future__ import annotations

from typing import Any, Literal

from dovetail import ops
from dovetail.declare import UnwrittenError, fused_op
from dovetail.errors import TypeRuleError
from dovetail.ir.value import Value

Empty = Literal["nan", "zero"]
"""What a row of nothing but -inf gives; "zero" makes 0 of any NaN."""


@fused_op(shapes="x[*, m, n] axis=-1", stage="recognise")
def softmax(x: Value, *, axis: int = -1, empty: Empty = "nan") -> Value:
    """exp(x - max) / sum(exp(x - max)) along an axis: one pass."""
    raised = ops.exp(x - ops.reduce_max(x, axes=along(axis)))
    return _guarded(raised / ops.reduce_sum(raised, axes=along(axis)), empty)


@softmax.spelling
def guard_apart(x: Value, *, axis: int = -1, empty: Empty = "nan") -> Value:
    """The guard against empty rows stands behind a softmax that is one op already."""
    if empty == "nan":
        raise UnwrittenError("a softmax without a guard", hint="there is nothing to spell apart")
    return _guarded(softmax(x, axis=axis), empty)


def _guarded(weights: Value, empty: Empty) -> Value:
    return ops.where(ops.is_nan(weights), 0.0, weights) if empty == "zero" else weights


def along(axis: Any) -> tuple[Any]:
    """The one axis of a reduction, which has one spelling only: counted from the end."""
    if isinstance(axis, int) and axis >= 0:
        raise TypeRuleError(f"softmax along axis {axis}", hint="count the axis from the end: the last one is -1")
    return (axis,)

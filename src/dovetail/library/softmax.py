"""softmax: exponentials along an axis, divided by their sum."""

from __future__ import annotations

from typing import Any, Literal

from dovetail import ops
from dovetail.declare import UnwrittenError, fused_op
from dovetail.errors import TypeRuleError
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.ops.deferred_shape import dtype_of

Empty = Literal["nan", "zero"]
"""What a row of nothing but -inf gives; "zero" makes 0 of any NaN."""


Flag = Literal[False, True]


@fused_op(shapes="x[*, m, n] axis=-1", stage="recognise")
def softmax(x: Value, *, axis: int = -1, empty: Empty = "nan", wide: Flag = False) -> Value:
    """exp(x - max) / sum(exp(x - max)) along an axis: one pass. A wide one is taken in f32, whatever x is."""
    own = ops.cast(x, dtype=f32) if wide else x
    raised = ops.exp(own - ops.reduce_max(own, axes=along(axis)))
    weights = _guarded(raised / ops.reduce_sum(raised, axes=along(axis)), empty)
    return ops.cast(weights, dtype=dtype_of(x)) if wide else weights


@softmax.spelling
def guard_apart(x: Value, *, axis: int = -1, empty: Empty = "nan", wide: Flag = False) -> Value:
    """The guard against empty rows stands behind a softmax that is one op already."""
    if empty == "nan":
        raise UnwrittenError("a softmax without a guard", hint="there is nothing to spell apart")
    return _guarded(softmax(x, axis=axis, wide=wide), empty)


@softmax.requires(
    reason="x is {x.type} and is cast to f32, which changes nothing",
)
def casts_change_the_dtype(x: Value, wide: Flag) -> bool:
    return not wide or x.dtype != f32


@softmax.gradient
def by_the_result(g: Value, y: Value, x: Value, *, axis: int, empty: Empty, wide: Flag) -> tuple[Value]:
    """y * (g - sum(g * y)): without the detour through the maximum, and 0 where a row of nothing gives 0."""
    weights, weighed = (ops.cast(y, dtype=f32), ops.cast(g, dtype=f32)) if wide else (y, g)
    lost = weights * (weighed - ops.reduce_sum(weighed * weights, axes=along(axis)))
    return (ops.cast(lost, dtype=x.dtype) if wide else lost,)


def _guarded(weights: Value, empty: Empty) -> Value:
    return ops.where(ops.is_nan(weights), 0.0, weights) if empty == "zero" else weights


def along(axis: Any) -> tuple[Any]:
    """The one axis of a reduction, which has one spelling only: counted from the end."""
    if isinstance(axis, int) and axis >= 0:
        raise TypeRuleError(f"softmax along axis {axis}", hint="count the axis from the end: the last one is -1")
    return (axis,)

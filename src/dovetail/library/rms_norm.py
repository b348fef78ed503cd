"""rms_norm: the last axis divided by its root mean square."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import Change, fused_op, typed
from dovetail.ir.value import Value
from dovetail.library.norms import Precision, casts_anything, is_a_row, mean, scaled, widened


@fused_op(shapes="x[*, n] gain[n]", stage="recognise")
def rms_norm(x: Value, gain: Value | None = None, *, eps: float, precision: Precision = "own") -> Value:
    """x / sqrt(mean(x²) + eps) over the last axis, times a gain: one pass."""
    wide = widened(x, precision)
    return scaled(wide * ops.rsqrt(mean(wide * wide) + eps), x, gain, None, precision)


@rms_norm.spelling
def divided(x: Value, gain: Value | None = None, *, eps: float, precision: Precision = "own") -> Value:
    """Divided by the root itself."""
    wide = widened(x, precision)
    return scaled(wide / ops.sqrt(mean(wide * wide) + eps), x, gain, None, precision)


@rms_norm.spelling
def gain_first(x: Value, gain: Value | None = None, *, eps: float, precision: Precision = "own") -> Value:
    """The gain is taken before the division, where no cast stands between them."""
    wide = widened(x, precision)
    early, late = (None, gain) if precision == "f32" else (gain, None)
    top = wide if early is None else wide * early
    return scaled(top * ops.rsqrt(mean(wide * wide) + eps), x, late, None, precision)


@rms_norm.requires(
    reason="the gain is {gain.type} and x is {x.type}; one vector scales every row",
    hint="give the gain the shape of the last axis",
)
def gain_is_a_vector(x: Value, gain: Value | None) -> bool:
    return is_a_row(gain, x)


@rms_norm.remedy(gain_is_a_vector)
def gain_as_a_vector(x: Value, gain: Value) -> Change:
    """The gain is one vector for all rows."""
    return {"gain": typed(gain, shape=x.shape[-1:])}


@rms_norm.requires(
    reason="x is {x.type} and is cast to f32, which changes nothing",
)
def casts_change_the_dtype(x: Value, precision: Precision) -> bool:
    return casts_anything(x, precision)

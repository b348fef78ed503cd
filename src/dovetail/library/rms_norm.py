"""rms_norm: the last axis divided by its root mean square."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.norms import SPELLED, Divide, Precision, Spelling, Square, called, is_a_row, mean, scaled, widened


@fused_op(shapes="x[*, n] gain[n]", stage="recognise")
def rms_norm(x: Value, gain: Value | None = None, *, eps: float, precision: Precision = "own") -> Value:
    """x / sqrt(mean(x²) + eps) over the last axis, times a gain: one pass."""
    wide = widened(x, precision)
    return scaled(wide * ops.rsqrt(mean(wide * wide) + eps), x, gain, None, precision)


def _spelled(square: Square, divide: Divide) -> Spelling:
    def spelling(x: Value, gain: Value | None = None, *, eps: float, precision: Precision = "own") -> Value:
        wide = widened(x, precision)
        return scaled(divide(wide, mean(square(wide)) + eps), x, gain, None, precision)

    return called(spelling, square, divide)


for _square, _divide in SPELLED:
    rms_norm.spelling(_spelled(_square, _divide))


@rms_norm.spelling
def gain_first(x: Value, gain: Value | None = None, *, eps: float, precision: Precision = "own") -> Value:
    """The gain is taken before the division, where no cast stands between them."""
    wide = widened(x, precision)
    early, late = (None, gain) if precision == "f32" else (gain, None)
    top = wide if early is None else wide * early
    return scaled(top * ops.rsqrt(mean(wide * wide) + eps), x, late, None, precision)


@rms_norm.requires(
    reason="the gain is {gain.type} and x is {x.type}; one vector scales every row",
    hint="give the gain the shape [n] of the last axis, or multiply by it outside",
)
def gain_is_a_vector(x: Value, gain: Value | None) -> bool:
    return is_a_row(gain, x)

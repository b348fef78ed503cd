"""layer_norm: the last axis brought to mean 0 and variance 1."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import Change, fused_op, typed
from dovetail.ir.value import Value
from dovetail.library.norms import Precision, casts_anything, is_a_row, mean, scaled, widened


@fused_op(shapes="x[*, n] gain[n] bias[n]", stage="recognise")
def layer_norm(
    x: Value, gain: Value | None = None, bias: Value | None = None, *, eps: float, precision: Precision = "own"
) -> Value:
    """(x - mean) / sqrt(variance + eps) over the last axis, times a gain, plus a bias: one pass."""
    wide = widened(x, precision)
    centred = wide - mean(wide)
    return scaled(centred * ops.rsqrt(mean(centred * centred) + eps), x, gain, bias, precision)


@layer_norm.spelling
def divided(
    x: Value, gain: Value | None = None, bias: Value | None = None, *, eps: float, precision: Precision = "own"
) -> Value:
    """Divided by the root itself."""
    wide = widened(x, precision)
    centred = wide - mean(wide)
    return scaled(centred / ops.sqrt(mean(centred * centred) + eps), x, gain, bias, precision)


@layer_norm.requires(
    reason="the gain is {gain.type} and x is {x.type}; one vector scales every row",
    hint="give the gain the shape of the last axis",
)
def gain_is_a_vector(x: Value, gain: Value | None) -> bool:
    return is_a_row(gain, x)


@layer_norm.remedy(gain_is_a_vector)
def gain_as_a_vector(x: Value, gain: Value) -> Change:
    """The gain is one vector for all rows."""
    return {"gain": typed(gain, shape=x.shape[-1:])}


@layer_norm.requires(
    reason="the bias is {bias.type} and x is {x.type}; one vector shifts every row",
    hint="give the bias the shape of the last axis",
)
def bias_is_a_vector(x: Value, bias: Value | None) -> bool:
    return is_a_row(bias, x)


@layer_norm.remedy(bias_is_a_vector)
def bias_as_a_vector(x: Value, bias: Value) -> Change:
    """The bias is one vector for all rows."""
    return {"bias": typed(bias, shape=x.shape[-1:])}


@layer_norm.requires(
    reason="x is {x.type} and is cast to f32, which changes nothing",
)
def casts_change_the_dtype(x: Value, precision: Precision) -> bool:
    return casts_anything(x, precision)

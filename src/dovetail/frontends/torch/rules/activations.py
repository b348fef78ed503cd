"""Activations."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.frontends.shared.dtypes import computed_in_f32
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node, axis_of
from dovetail.frontends.torch.importing.rule import Number, rule
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("gelu.default")
def gelu(n: Node, x: Value, *, approximate: str = "none") -> Value:
    """Gaussian error linear unit, exact or by tanh."""
    return library.gelu.body(x, form="tanh" if approximate == "tanh" else "erf")


@rule("silu.default")
def silu(n: Node, x: Value) -> Value:
    """x * sigmoid(x)"""
    return library.silu.body(x)


@rule("mish.default")
def mish(n: Node, x: Value) -> Value:
    """x * tanh(softplus(x))"""
    return ops.mish(x)


@rule("relu6.default")
def relu6(n: Node, x: Value) -> Value:
    """x between 0 and 6."""
    return ops.relu6(x)


@rule("hardsigmoid.default")
def hard_sigmoid(n: Node, x: Value) -> Value:
    """x / 6 + 1/2 between 0 and 1."""
    return ops.hard_sigmoid(x, alpha=1 / 6)


@rule("hardswish.default")
def hard_swish(n: Node, x: Value) -> Value:
    """x times a straight-line sigmoid."""
    return ops.hard_swish(x)


@rule("leaky_relu.default")
def leaky_relu(n: Node, x: Value, negative_slope: float = 0.01) -> Value:
    """x, times a slope where it is negative."""
    return ops.leaky_relu(x, slope=float(negative_slope))


@rule("elu.default")
def elu(n: Node, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """x, and alpha * (exp(x) - 1) where it is negative, both scaled."""
    low = ops.expm1(ops.minimum(x, 0.0) * float(input_scale)) * (float(alpha) * float(scale))
    return ops.where(ops.greater(x, 0.0), x * float(scale), low)


@rule("celu.default")
def celu(n: Node, x: Value, alpha: float = 1.0) -> Value:
    """elu whose slope is 1 at 0 whatever alpha is."""
    return ops.celu(x, alpha=float(alpha))


@rule("selu.default")
def selu(n: Node, x: Value) -> Value:
    """elu scaled so that it keeps mean 0 and variance 1."""
    return ops.selu(x)


@rule("softplus.default")
def softplus(n: Node, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    """log(1 + exp(beta * x)) / beta, and x where beta * x is above a threshold."""
    if beta == 1 and threshold == 20:
        # Above 20 the logarithm is x to the last bit of f32; f64 needs the comparison.
        return ops.softplus(x) if x.dtype.bits < 64 else ops.where(ops.greater(x, 20.0), x, ops.softplus(x))
    scaled = x * n.value(beta, x.dtype)
    return ops.where(ops.greater(scaled, n.value(threshold, x.dtype)), x, ops.softplus(scaled) / n.value(beta, x.dtype))


@rule("log_sigmoid_forward.default")
def log_sigmoid(n: Node, x: Value) -> Made:
    """log(sigmoid(x))"""
    return ops.log_sigmoid(x), None


@rule("prelu.default", "_prelu_kernel.default")
def prelu(n: Node, x: Value, weight: Value) -> Value:
    """x, times the slope of its channel where it is negative."""
    slope = weight
    if slope.rank == 1 and x.rank > 1:
        slope = build.expand_dims(slope, range(1, x.rank - 1)) if x.rank > 2 else slope
    elif slope.rank == 1 and x.rank == 0:
        slope = build.reshape(slope, ())
    return ops.where(ops.greater(x, 0.0), x, x * slope)


@rule("threshold.default")
def threshold(n: Node, x: Value, threshold: Number, value: Number) -> Value:
    """x above a threshold, another number elsewhere."""
    return ops.where(ops.less_equal(x, n.value(threshold, x.dtype)), n.value(value, x.dtype), x)


@rule("softshrink.default")
def softshrink(n: Node, x: Value, lambd: float = 0.5) -> Value:
    """x moved towards 0 by lambd, 0 within it."""
    amount = float(lambd)
    above = ops.where(ops.greater(x, amount), x - amount, x * 0.0)
    return ops.where(ops.less(x, -amount), x + amount, above)


@rule("hardshrink.default")
def hardshrink(n: Node, x: Value, lambd: float = 0.5) -> Value:
    """x, and 0 within -lambd to lambd."""
    inside = ops.bit_and(ops.greater_equal(x, -float(lambd)), ops.less_equal(x, float(lambd)))
    return ops.where(inside, leaf.scalar(0, x.dtype), x)


@rule("glu.default")
def glu(n: Node, x: Value, dim: int = -1) -> Value:
    """The first half of an axis, gated by the sigmoid of the second."""
    return ops.glu(x, axis=axis_of(x, dim))


@rule("logit.default")
def logit(n: Node, x: Value, eps: float | None = None) -> Value:
    """log(x / (1 - x)), of x kept eps away from 0 and 1."""
    wide = computed_in_f32(x) if x.dtype.is_float else ops.cast(x, dtype=n.dtype)
    kept = wide if eps is None else ops.clip(wide, float(eps), 1.0 - float(eps))
    y = ops.log(kept / (1.0 - kept))
    return y if y.dtype is n.dtype else ops.cast(y, dtype=n.dtype)

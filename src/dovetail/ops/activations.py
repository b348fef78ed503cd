"""Activations spelled in primitives. They read no shapes, so that bodies and patterns may use them."""

from __future__ import annotations

from dovetail.ir.value import Value
from dovetail.ops import movement
from dovetail.ops.arithmetic import clip
from dovetail.ops.elementwise import (
    abs_,
    expm1,
    less,
    less_equal,
    minimum,
    mul,
    relu,
    sigmoid,
    sign,
    softplus,
    tanh,
    where,
)
from dovetail.ops.primitive import Operand


def leaky_relu(x: Value, *, slope: float = 0.01) -> Value:
    """x, times a slope where it is negative."""
    return prelu(x, slope)


def prelu(x: Value, slope: Operand) -> Value:
    """x, times a learned slope where it is negative; the slope broadcasts."""
    return where(less(x, 0.0), mul(x, slope), x)


def elu(x: Value, *, alpha: float = 1.0) -> Value:
    """x, and alpha * (exp(x) - 1) where it is negative."""
    # exp sees no positive number, so that nothing overflows on the side that is not used.
    return relu(x) + alpha * expm1(minimum(x, 0.0))


def celu(x: Value, *, alpha: float = 1.0) -> Value:
    """elu whose slope is 1 at 0 whatever alpha is."""
    return relu(x) + alpha * expm1(minimum(x, 0.0) / alpha)


def selu(x: Value, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Value:
    """elu scaled so that it keeps mean 0 and variance 1."""
    return gamma * elu(x, alpha=alpha)


def hard_sigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    """alpha * x + beta between 0 and 1."""
    return minimum(relu(alpha * x + beta), 1.0)


def hard_swish(x: Value) -> Value:
    """x times a straight-line sigmoid."""
    return x * hard_sigmoid(x, alpha=1 / 6)


def hard_tanh(x: Value, *, low: float = -1.0, high: float = 1.0) -> Value:
    """x between low and high."""
    return clip(x, low, high)


def relu6(x: Value) -> Value:
    """x between 0 and 6."""
    return minimum(relu(x), 6.0)


def mish(x: Value) -> Value:
    """x * tanh(softplus(x))."""
    return x * tanh(softplus(x))


def softsign(x: Value) -> Value:
    """x / (1 + |x|)."""
    return x / (1.0 + abs_(x))


def shrink(x: Value, *, threshold: float = 0.5, bias: float = 0.0) -> Value:
    """0 within the threshold, x moved towards 0 by the bias outside; hard without bias, soft where both are equal."""
    outside = x - bias * sign(x) if bias else x
    return where(less_equal(abs_(x), threshold), 0.0, outside)


def threshold(x: Value, *, above: float = 1.0, other: float = 0.0) -> Value:
    """Return x where it is above a number, another number elsewhere."""
    return where(less_equal(x, above), other, x)


def log_sigmoid(x: Value) -> Value:
    """log(sigmoid(x)) that does not underflow."""
    return -softplus(-x)


def tanh_shrink(x: Value) -> Value:
    """x - tanh(x)."""
    return x - tanh(x)


def glu(x: Value, *, axis: int = -1) -> Value:
    """Return the first half of an axis, gated by the sigmoid of the second."""
    first, second = (movement.part(x, axis=axis, index=i, parts=2) for i in (0, 1))
    return first * sigmoid(second)


__all__ = [
    "celu", "elu", "glu", "hard_sigmoid", "hard_swish", "hard_tanh", "leaky_relu", "log_sigmoid", "mish", "prelu",
    "relu6", "selu", "shrink", "softsign", "tanh_shrink", "threshold",
]  # fmt: skip

"""Activations."""

from __future__ import annotations

import math

import numpy as np

from dovetail import library, ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.ir.value import Value
from dovetail.ops import build


def _single(number: float) -> float:
    """A default as ONNX has it: rounded to f32."""
    return float(np.float32(number))


# consumed_inputs said which memory may be written over, up to opset 5. It changes no result.


@rule("Relu")
def relu(n: Node, x: Value, *, consumed_inputs: tuple[int, ...] = ()) -> Value:
    """x, and 0 where it is negative."""
    return ops.relu(x)


@rule("Sigmoid")
def sigmoid(n: Node, x: Value, *, consumed_inputs: tuple[int, ...] = ()) -> Value:
    """1 / (1 + exp(-x))"""
    return ops.sigmoid(x)


@rule("Softplus")
def softplus(n: Node, x: Value) -> Value:
    """log(1 + exp(x))"""
    return ops.softplus(x)


@rule("Softsign")
def softsign(n: Node, x: Value) -> Value:
    """x / (1 + |x|)"""
    return ops.softsign(x)


@rule("HardSigmoid")
def hard_sigmoid(
    n: Node, x: Value, *, alpha: float = _single(0.2), beta: float = 0.5, consumed_inputs: tuple[int, ...] = ()
) -> Value:
    """alpha * x + beta between 0 and 1."""
    return ops.hard_sigmoid(x, alpha=alpha, beta=beta)


@rule("HardSwish")
def hard_swish(n: Node, x: Value) -> Value:
    """x times a straight-line sigmoid."""
    return ops.hard_swish(x)


@rule("Swish")
def swish(n: Node, x: Value, *, alpha: float = 1.0) -> Value:
    """x * sigmoid(alpha * x)"""
    return library.silu.body(x) if alpha == 1.0 else x * ops.sigmoid(alpha * x)


@rule("Mish")
def mish(n: Node, x: Value) -> Value:
    """x * tanh(softplus(x))"""
    return ops.mish(x)


@rule("Gelu")
def gelu(n: Node, x: Value, *, approximate: str = "none") -> Value:
    """Gaussian error linear unit, exact or by tanh."""
    match approximate:
        case "none":
            return library.gelu.body(x, form="erf")
        case "tanh":
            return library.gelu.body(x, form="tanh")
        case _:
            raise n.malformed(f"approximate is {approximate!r}", hint="it is none or tanh")


@rule("Elu")
def elu(n: Node, x: Value, *, alpha: float = 1.0, consumed_inputs: tuple[int, ...] = ()) -> Value:
    """x, and alpha * (exp(x) - 1) where it is negative."""
    return ops.elu(x, alpha=alpha)


@rule("Celu")
def celu(n: Node, x: Value, *, alpha: float = 1.0) -> Value:
    """elu whose slope is 1 at 0 whatever alpha is."""
    return ops.celu(x, alpha=alpha)


@rule("Selu", since=6)
def selu(n: Node, x: Value, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Value:
    """gamma times elu of alpha."""
    return ops.selu(x, alpha=alpha, gamma=gamma)


@rule("Selu", until=5)
def selu_1(
    n: Node,
    x: Value,
    *,
    alpha: float = _single(1.6732),
    gamma: float = _single(1.0507),
    consumed_inputs: tuple[int, ...] = (),
) -> Value:
    """gamma times elu of alpha."""
    return ops.selu(x, alpha=alpha, gamma=gamma)


@rule("LeakyRelu")
def leaky_relu(n: Node, x: Value, *, alpha: float = _single(0.01), consumed_inputs: tuple[int, ...] = ()) -> Value:
    """x, times alpha where it is negative."""
    return ops.leaky_relu(x, slope=alpha)


@rule("PRelu", since=7)
def prelu(n: Node, x: Value, slope: Value) -> Value:
    """x, times a slope that broadcasts where it is negative."""
    return ops.prelu(x, slope)


@rule("PRelu", until=6)
def prelu_1(n: Node, x: Value, slope: Value, *, consumed_inputs: tuple[int, ...] = ()) -> Value:
    """x, times the slope of its channel where it is negative."""
    channels = slope.rank == 1 and slope.shape[0] != 1 and x.rank > 2
    return ops.prelu(x, build.expand_dims(slope, range(1, x.rank - 1)) if channels else slope)


@rule("ThresholdedRelu")
def thresholded_relu(n: Node, x: Value, *, alpha: float = 1.0) -> Value:
    """x above alpha, 0 elsewhere."""
    return ops.where(ops.greater(x, alpha), x, 0.0)


@rule("Shrink")
def shrink(n: Node, x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """x moved by the bias towards 0 outside of -lambd to lambd, 0 within."""
    if x.dtype.is_integer:
        if not bias.is_integer():
            raise n.unsupported(f"a bias of {bias} on {x.dtype.name}", hint="use a whole number")
        lambd = float(math.floor(lambd))  # the whole numbers above are the same
    above = ops.where(ops.greater(x, lambd), x - bias if bias else x, 0)
    if x.dtype.kind == "uint":
        return above
    return ops.where(ops.less(x, -lambd), x + bias if bias else x, above)

"""What the tests of fused ops share: numbers for a graph, the reference in float64, formulas written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import Graph, Value, ops
from dovetail.declare import FusedOp
from dovetail.declare.fused import Result
from dovetail.derive.fuse import Fused, fuse
from dovetail.dtypes import DType
from dovetail.library import ALL
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.reference.interpreter import evaluate

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Formula = Callable[[Array], Array]

SQUARES: dict[str, Callable[[Value], Value]] = {"product": lambda x: x * x, "power": lambda x: ops.pow_(x, 2.0)}
DIVISIONS: dict[str, Callable[[Value, Value], Value]] = {
    "rsqrt": lambda x, v: x * ops.rsqrt(v),
    "root": lambda x, v: x / ops.sqrt(v),
    "quotient": lambda x, v: x * (1.0 / ops.sqrt(v)),
    "reciprocal": lambda x, v: ops.reciprocal(ops.sqrt(v)) * x,
}
"""How exporters write the square and the division of a norm."""


def numbers(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """A float64 array for every input and parameter, by name."""
    rng = np.random.default_rng(seed)
    leaves = dict.fromkeys((*graph.inputs, *graph.parameters))
    return {str(v.attrs["name"]): rng.normal(size=tuple(int(str(s)) for s in v.shape)) for v in leaves}


def run(graph: Graph, arrays: Arrays) -> dict[str, Array]:
    """The outputs in float64."""
    inputs = {str(v.attrs["name"]) for v in graph.inputs}
    parameters = {str(v.attrs["name"]) for v in graph.parameters}
    feeds = {k: v for k, v in arrays.items() if k in inputs}
    return evaluate(graph, feeds, params={k: v for k, v in arrays.items() if k in parameters}, lift=True)


def fused(
    outputs: Mapping[str, Value] | Value,
    ops: Sequence[FusedOp[...]] = ALL,
    *,
    always: bool = False,
    strict: bool = False,
) -> Fused:
    """What the library makes of these outputs, once they are canonical; `strict` keeps every bit until then."""
    return fuse(canonicalize(Graph.of(outputs), strict=strict), ops, always=always)


def one(result: Result) -> Value:
    """The result of a body that has one."""
    assert isinstance(result, Value)
    return result


def near(got: Array, expected: Array) -> None:
    """Equal but for constants, which graphs hold in float32."""
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


def names(graph: Graph) -> list[str]:
    """The ops of a graph without its leaves, in order."""
    return [v.op.name for v in graph.values if v.op.name not in ("input", "param", "const")]


def only_miss(result: Fused) -> tuple[str, str]:
    """Rule and reason of the one miss."""
    (missed,) = result.missed
    assert missed.message
    return missed.rule, missed.reason


def erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


def gelu(x: Array) -> Array:
    """x times the normal distribution's share below x."""
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * np.power(x, 3))))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.where(x > 0, x, 0)


def relu6(x: Array) -> Array:
    return np.clip(x, 0, 6)


def hard_sigmoid(x: Array) -> Array:
    return np.clip((x + 3) / 6, 0, 1)


def hard_swish(x: Array) -> Array:
    return x * hard_sigmoid(x)


def layer_norm(x: Array, eps: float) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def rms_norm(x: Array, eps: float) -> Array:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)


__all__ = [
    "DIVISIONS",
    "SQUARES",
    "Array",
    "Arrays",
    "DType",
    "Formula",
    "Value",
    "erf",
    "evaluate",
    "fused",
    "gelu",
    "gelu_tanh",
    "layer_norm",
    "names",
    "near",
    "numbers",
    "one",
    "only_miss",
    "relu",
    "rms_norm",
    "run",
    "sigmoid",
    "silu",
]

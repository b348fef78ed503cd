"""What the tests of attention share: attention query by query in plain NumPy, and what the library makes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail import Graph, Value, ops
from dovetail.declare import Machine
from dovetail.derive.fuse import ANY_MACHINE, Fused, fuse
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.library import ALL
from dovetail.library.attention import Filled, attention
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.reference.interpreter import evaluate

Array = NDArray[Any]
LOWEST = float(np.finfo(np.float32).min)
INF = float("inf")


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float = 1.0,
    added: Array | float = 0.0,
    keep: Array | bool = True,
    fill: float = -INF,
    filled: Filled = "last",
    softcap: float | None = None,
    empty: float = np.nan,
) -> Array:
    """softmax(q·k * scale + added) · v for q[b, h, sq, d], query by query; `empty` is for queries without any key."""
    batch, heads, queries, _ = q.shape
    group = heads // k.shape[1]
    scores_shape = (batch, heads, queries, k.shape[2])
    bias, seen = np.broadcast_to(added, scores_shape), np.broadcast_to(keep, scores_shape)
    result = np.zeros((batch, heads, queries, v.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, queries):
        points = np.array([float(np.dot(q[b, h, i], key)) for key in k[b, h // group]]) * scale
        if softcap is not None:
            points = softcap * np.tanh(points / softcap)
        over = {"last": 0.0, "first": bias[b, h, i], "added": points + bias[b, h, i]}[filled]
        points = np.where(seen[b, h, i], points + bias[b, h, i], fill + over)
        if np.all(points == -INF):
            result[b, h, i] = empty
            continue
        weights = np.exp(points - points.max())
        result[b, h, i] = (weights[:, None] * v[b, h // group]).sum(0) / weights.sum()
    return result


def causal(queries: int, keys: int, window: int | None = None) -> Array:
    """Whether query i may see key j."""
    seen = [[j <= i and (window is None or i - j < window) for j in range(keys)] for i in range(queries)]
    return np.array(seen)


def rotate(x: Array, cos: Array, sin: Array, *, neighbours: bool = False) -> Array:
    """Pairs of features turned by their angles, pair by pair."""
    turned = np.empty_like(x)
    width = x.shape[-1]
    for pair in range(width // 2):
        a, b = (2 * pair, 2 * pair + 1) if neighbours else (pair, pair + width // 2)
        turned[..., a] = x[..., a] * cos[..., a] - x[..., b] * sin[..., a]
        turned[..., b] = x[..., b] * cos[..., b] + x[..., a] * sin[..., b]
    return turned


def angles(rows: int, width: int, *, neighbours: bool = False, offset: int = 0) -> tuple[Array, Array]:
    """Cosine and sine of every position, each angle at both features of its pair."""
    rates = 10000.0 ** -(np.arange(width // 2) * 2 / width)
    turns = np.outer(np.arange(offset, offset + rows), rates)
    both = np.repeat(turns, 2, axis=-1) if neighbours else np.concatenate([turns, turns], axis=-1)
    return np.cos(both), np.sin(both)


def heads_of(x: Array, heads: int) -> Array:
    """[b, s, heads * d] as [b, heads, s, d]."""
    batch, rows, width = x.shape
    return np.stack([x[:, :, h * width // heads : (h + 1) * width // heads] for h in range(heads)], axis=1).reshape(
        batch, heads, rows, width // heads
    )


def joined_heads(x: Array) -> Array:
    """[b, heads, s, d] as [b, s, heads * d]."""
    return np.concatenate([x[:, h] for h in range(x.shape[1])], axis=-1)


def swap(x: Value) -> Value:
    return ops.permute(x, order=(-1, -2))


def plain_softmax(x: Value) -> Value:
    raised = ops.exp(x - ops.reduce_max(x, axes=(-1,)))
    return raised / ops.reduce_sum(raised, axes=(-1,))


def added_mask(seen: Value, fill: float = LOWEST) -> Value:
    """0 where keys are seen, the fill elsewhere."""
    return ops.where(seen, leaf.scalar(0.0, f32), leaf.scalar(fill, f32))


def widen(x: Value, groups: int) -> Value:
    """Each head as often as it is shared."""
    return ops.merge(ops.expand(ops.unsqueeze(x, axes=(-3,)), axis=-3, size=groups), axis=-3)


def recognised(outputs: Mapping[str, Value] | Value, *, machine: Machine = ANY_MACHINE, always: bool = False) -> Fused:
    """What the library makes of a graph in canonical form."""
    return fuse(canonicalize(Graph.of(outputs)), ALL, machine=machine, always=always)


def found(outputs: Mapping[str, Value] | Value, op: str, *, machine: Machine = ANY_MACHINE) -> Value:
    """The one value of an op that the library finds."""
    values = [v for v in recognised(outputs, machine=machine).graph.values if v.op.name == op]
    assert len(values) == 1, [v.op.name for v in values]
    return values[0]


def feeds(graph: Graph, **given: Array) -> dict[str, Array]:
    """Arrays for the inputs and parameters: those given, bools with a first key in every row, else normal numbers."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for given_to in dict.fromkeys((*graph.inputs, *graph.parameters)):
        name = str(given_to.attrs["name"])
        shape = tuple(int(str(s)) for s in given_to.shape)
        if name in given:
            arrays[name] = given[name]
        elif given_to.dtype.kind == "bool":
            arrays[name] = rng.random(shape) < 0.7
            arrays[name][..., 0] = True
        else:
            arrays[name] = rng.normal(size=shape)
    return arrays


def run(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs in float64."""
    inputs = {str(v.attrs["name"]) for v in graph.inputs}
    named = {str(v.attrs["name"]) for v in graph.parameters}
    return evaluate(
        graph,
        {k: a for k, a in arrays.items() if k in inputs},
        params={k: a for k, a in arrays.items() if k in named},
        lift=True,
    )


def near(got: Array, expected: Array) -> None:
    """Equal but for constants, which graphs hold in float32."""
    np.testing.assert_allclose(got, expected, rtol=5e-6, atol=5e-6)


def qkv(arrays: Mapping[str, Array], **how: Any) -> Array:
    return attend(arrays["q"], arrays["k"], arrays["v"], **how)


def check(spelled: Value, expected: Callable[[Mapping[str, Array]], Array], **options: object) -> Value:
    """The graph becomes one attention with these options, which computes what is expected."""
    value = found(spelled, "attention")
    graph = recognised(spelled).graph
    assert graph.outputs["y"] is value
    for name, wanted in options.items():
        assert getattr(attention.of(value), name) == wanted, name
    arrays = feeds(graph)
    near(run(graph, arrays)["y"], expected(arrays))
    return value


def refusal(spelled: Value) -> tuple[str, str]:
    """Which guard refuses an attention, and what it says."""
    (missed,) = [m for m in recognised(spelled).missed if m.rule == "attention"]
    return missed.reason, missed.message

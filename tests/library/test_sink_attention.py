"""sink_attention: a score without a key takes its share of the weights, and gives nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import DType, f16, f32
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import input
from dovetail.library.sink_attention import sink_attention
from tests.library.attending import found, plain_softmax, swap, widen

B, HEADS, GROUPS, D, DV = 2, 4, 2, 8, 6
SCALE = 0.25


def spelled(queries: Any, keys: Any, *, masked: bool, columns: int = 1, dtype: DType = f32) -> Value:
    """Scores and sinks side by side, as gpt_oss writes them; a sink for each head."""
    q = input("q", dtype[B, HEADS, queries, D])
    k, v = input("k", dtype[B, HEADS // GROUPS, keys, D]), input("v", dtype[B, HEADS // GROUPS, keys, DV])
    scores = (q @ swap(widen(k, GROUPS))) * SCALE
    if masked:
        scores = scores + input("mask", dtype[B, 1, queries, keys])
    column = ops.expand(input("sinks", dtype[HEADS, 1, columns]), axis=-2, size=queries)
    column = ops.expand(ops.unsqueeze(column, axes=(-4,)), axis=-4, size=B)
    raised = ops.concat(scores, column, axis=-1)
    weights = plain_softmax(raised - ops.reduce_max(raised, axes=(-1,)))
    return ops.slice_(weights, axis=-1, start=0, stop=keys) @ widen(v, GROUPS)


def wanted(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], sinks: NDArray[Any], mask: Any) -> NDArray[Any]:
    """In float64, query by query."""
    result = np.zeros((*q.shape[:-1], v.shape[-1]))
    for b, h, i in np.ndindex(q.shape[:-1]):
        points = k[b, h // GROUPS].astype(float) @ q[b, h, i].astype(float) * SCALE
        points += 0.0 if mask is None else mask[b, 0, i]
        top = max(points.max(initial=-np.inf), sinks[h, 0, 0])
        weights = np.exp(points - top)
        result[b, h, i] = weights @ v[b, h // GROUPS].astype(float) / (weights.sum() + np.exp(sinks[h, 0, 0] - top))
    return result


@pytest.mark.parametrize("masked", [False, True])
def test_scores_beside_sinks_are_found(masked: bool) -> None:
    n = symbol("n")
    value = found(spelled(n, n, masked=masked), "sink_attention")
    assert value.op is sink_attention and value.attrs["groups"] == GROUPS and value.attrs["scale"] == SCALE


@pytest.mark.slow
def test_two_columns_of_sinks_are_left_as_they_are() -> None:
    graph = Graph.of(spelled(5, 5, masked=True, columns=2))
    report = dovetail.compile(graph).report
    assert report.count("sink_attention") == 0
    assert [m.reason for m in report.missed if m.rule == "sink_attention"] == ["sinks_are_a_column"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize("dtype", [f32, f16], ids=["f32", "f16"])
def test_sinks_take_their_share(target: str, masked: bool, dtype: DType) -> None:
    """At sizes for few queries, for some that fill no vector, and for several blocks of keys."""
    sizes = symbol("queries"), symbol("keys")
    program = dovetail.compile(Graph.of(spelled(*sizes, masked=masked, dtype=dtype)), target=target)
    assert [step.value.op for step in program.plan.steps] == [sink_attention]
    rng = np.random.default_rng(0)
    for queries, keys in ((1, 37), (5, 5), (70, 150), (3, 0)):
        shapes = {"q": (B, HEADS, queries, D), "k": (B, 2, keys, D), "v": (B, 2, keys, DV), "sinks": (HEADS, 1, 1)}
        given = {name: rng.normal(size=shape).astype(dtype.numpy) for name, shape in shapes.items()}
        given["sinks"] *= 4
        mask = np.where(rng.random((B, 1, queries, keys)) < 0.6, 0.0, -np.inf).astype(dtype.numpy)
        if keys:
            mask[0, 0, 0] = -np.inf  # a query that sees its sink alone gets nothing
        exact = wanted(given["q"], given["k"], given["v"], given["sinks"], mask if masked else None)
        made = program.run(given | ({"mask": mask} if masked else {}))["y"]
        assert np.abs(made - exact).max(initial=0.0) <= (2e-6 if dtype is f32 else 4e-3)
        assert not masked or not keys or not made[0, :, 0].any()


@pytest.mark.slow
def test_one_query_and_known_sizes() -> None:
    """The kernel of few queries of all heads that share keys."""
    program = dovetail.compile(Graph.of(spelled(1, 37, masked=True)))
    rng = np.random.default_rng(1)
    shapes = {"q": (B, HEADS, 1, D), "k": (B, 2, 37, D), "v": (B, 2, 37, DV), "sinks": (HEADS, 1, 1)}
    given = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    mask = rng.normal(size=(B, 1, 1, 37)).astype(np.float32)
    exact = wanted(given["q"], given["k"], given["v"], given["sinks"], mask)
    assert np.abs(program.run(given | {"mask": mask})["y"] - exact).max() <= 2e-6

"""The whole idea in under a second: declare, fuse, miss, unfuse, run. The first file to read."""

from __future__ import annotations

import numpy as np

from dovetail import Graph, Value, ops
from dovetail.declare import fused_op
from dovetail.derive.fuse import fuse
from dovetail.derive.unfuse import unfuse
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.targets.reference.interpreter import evaluate


@fused_op(shapes="x[*, m, k] w[k, n] b[n]")
def dense(x: Value, w: Value, b: Value) -> Value:
    """One kernel for relu(x @ w + b)."""
    return ops.relu(x @ w + b)


@dense.requires(reason="the bias is {b.type}", hint="reshape it to [n]")
def bias_is_a_vector(b: Value) -> bool:
    return b.rank == 1


X, W, B = input("x", f32[2, 3]), param("w", f32[3, 4]), param("b", f32[4])
GRAPH = Graph.of(ops.relu(X @ W + B))


def test_the_same_expression_is_the_same_object() -> None:
    assert ops.relu(X @ W + B) is GRAPH.outputs["y"]


def test_it_fuses() -> None:
    fused = fuse(GRAPH, [dense])
    assert fused.graph.outputs["y"] is dense(X, W, B)
    assert not fused.missed


def test_unfusing_gives_back_the_very_same_graph() -> None:
    assert unfuse(fuse(GRAPH, [dense]).graph).outputs["y"] is GRAPH.outputs["y"]


def test_a_miss_has_a_name_a_reason_and_a_hint() -> None:
    square = param("b", f32[2, 4])
    (missed,) = fuse(Graph.of(ops.relu(X @ W + square)), [dense]).missed
    assert (missed.rule, missed.reason) == ("dense", "bias_is_a_vector")
    assert missed.message == "the bias is f32[2, 4]"
    assert missed.hint == "reshape it to [n]"


def test_it_runs() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in ((2, 3), (3, 4), (4,)))
    (y,) = evaluate(fuse(GRAPH, [dense]).graph, {"x": x}, params={"w": w, "b": b}).values()
    np.testing.assert_allclose(y, np.maximum(x @ w + b, 0), rtol=1e-6)

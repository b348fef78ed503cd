"""Bodies of loops and branches are fused like the graph around them, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_, f32
from dovetail.ir.graph import Graph, subgraphs
from dovetail.ir.value import Value


def body_ops(graph: Graph) -> set[str]:
    bodies = [body for value in graph.values for body in subgraphs(value) if value.op.name != "region"]
    return {v.op.name for body in bodies for v in body.values}


@pytest.mark.slow
def test_the_body_of_a_scan_is_fused_and_means_the_same() -> None:
    x, w, h = leaf.input("x", f32[5, 2, 8]), leaf.input("w", f32[4, 8]), leaf.input("h", f32[2, 4])

    def step(state: Value, slice: Value, weights: Value) -> tuple[Value, ...]:
        gates = state @ weights + slice
        new = ops.sigmoid(ops.part(gates, axis=-1, index=0, parts=2)) * ops.tanh(
            ops.part(gates, axis=-1, index=1, parts=2)
        )
        return new, new

    graph = Graph.of({"y": ops.scan(step, [h], [x], [w]).outputs[0]})
    program = dovetail.compile(graph)
    assert {"matmul_add", "region"} <= body_ops(program.graph)
    assert "matmul_add" not in body_ops(dovetail.compile(graph, without=["lower_bodies"]).graph)
    # A pass that is switched off is off in bodies, too.
    assert "matmul_add" not in body_ops(dovetail.compile(graph, without=["fuse"]).graph)
    assert "region" not in body_ops(dovetail.compile(graph, without=["mark_regions", "fuse_epilogues"]).graph)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((5, 2, 8)), "w": rng.standard_normal((4, 8)), "h": rng.standard_normal((2, 4))}
    state, expected = feeds["h"], list[object]()
    for t in range(5):
        gates = state @ feeds["w"] + feeds["x"][t]
        state = 1 / (1 + np.exp(-gates[:, :4])) * np.tanh(gates[:, 4:])
        expected.append(state)
    found = program.run({k: a.astype(np.float32) for k, a in feeds.items()})["y"]
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-5, atol=1e-6)


def test_only_the_branch_that_is_taken_runs() -> None:
    x, flag = leaf.input("x", f32[3]), leaf.input("flag", bool_[()])
    (y,) = ops.cond(flag, lambda v: ops.relu(v * 2.0 + 1.0), lambda v: ops.relu(-v), x)
    program = dovetail.compile(Graph.of({"y": y}))
    array = np.array([-2, 0, 2], np.float32)
    np.testing.assert_array_equal(program(x=array, flag=np.array(True))["y"], [0, 1, 5])
    np.testing.assert_array_equal(program(x=array, flag=np.array(False))["y"], [2, 0, 0])

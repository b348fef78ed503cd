"""Marks of runs: every step once, in order, inside the run, and the same bits as without them."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.runtime.compile import compile

pytestmark = pytest.mark.serial  # it measures runs on several threads

RNG = np.random.default_rng(0)
X = RNG.standard_normal((256, 64)).astype(np.float32)
W = RNG.standard_normal((64, 64)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_step_is_marked_once_and_in_order(threads: int) -> None:
    x, w = input("x", f32[256, 64]), param("w", f32[64, 64])
    graph = Graph.of(ops.exp((x @ w) * 0.01) @ w)
    program = compile(graph, params={"w": W}, threads=threads)
    expected = program.run({"x": X})["y"]
    begun = time.perf_counter_ns()
    found, marks = program.run_marked({"x": X})
    ended = time.perf_counter_ns()
    np.testing.assert_array_equal(found["y"], expected)
    assert [m.step.name for m in marks] == [s.name for s in program.plan.phase("run")]
    for mark in marks:
        assert begun <= mark.begin <= mark.end <= ended and not mark.on_host
        assert mark.work and all(mark.begin <= w.begin <= w.end <= mark.end for w in mark.work)
        assert {w.thread for w in mark.work} <= set(range(threads))
    assert all(a.end <= b.begin for a, b in pairwise(marks))


def test_what_the_host_runs_is_marked_as_such() -> None:
    x = input("x", f32[4, 4])
    program = compile(Graph.of(ops.det(ops.exp(x) + 1.0) * 2.0))
    marks = program.run_marked({"x": np.eye(4, dtype=np.float32)})[1]
    assert {m.step.value.op.name for m in marks if m.on_host} == {"det"}
    assert all(m.end > m.begin for m in marks)
    assert all(a.end <= b.begin for a, b in pairwise(marks))

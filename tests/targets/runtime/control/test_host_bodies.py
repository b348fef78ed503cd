"""Loops whose bodies find sizes while they run: the bodies are compiled, with their weights bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32, i64
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import input, param, scalar
from dovetail.ops.generate import counting
from dovetail.ops.tracing import while_loop
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


def loop() -> Graph:
    """h becomes tanh(h @ w + the sum of 0 … trip) for a number of trips that the run gives."""
    w, x, trips = param("w", f32[4, 4]), input("x", f32["n", 4]), input("trips", i64[()])

    def body(trip: Value, h: Value, w: Value, trips: Value) -> tuple[Value, ...]:
        counted = counting(trip, count=symbol("count"))
        total = ops.cast(ops.squeeze(ops.reduce_sum(counted, axes=(-1,)), axes=(-1,)), dtype=f32)
        return trip + 1, ops.tanh(ops.matmul(h, w) + total), w, trips

    made, _, _ = while_loop(
        lambda trip, h, w, trips: ops.less(trip, trips), body, (scalar(0, i64), x, w, trips), limit=64
    )
    return Graph.of({"h": made[1], "w": made[2]})


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("trips", [0, 1, 7])
def test_a_body_that_finds_a_size_in_every_trip(trips: int) -> None:
    graph = loop()
    program = dovetail.compile(graph)
    for seed in (1, 2):
        params = {"w": numbers(seed, 4, 4)}
        bound = program.bind(params)
        for rows in (1, 3):
            feed = {"x": numbers(rows, rows, 4), "trips": np.array(trips)}
            wanted = evaluate(graph, feed, params=params, lift=True)
            for _ in range(2):
                got = bound.run(feed)
                for name, array in wanted.items():
                    assert_close(got[name], array, f32)

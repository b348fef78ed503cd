"""Which kernel takes steps in where both the kernel before them and the one after them could."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ops.region import anchor_of, region
from dovetail.runtime.program import Program


def anchors(program: Program) -> dict[str, int]:
    """The anchor of each region, and how many results the region has."""
    found: dict[str, int] = {}
    for step in program.plan.steps:
        anchor = anchor_of(step.value.attrs["body"]) if step.value.op is region else None
        if anchor is not None:
            found[anchor.op.name] = len(step.results)
    return found


def product() -> tuple[Value, Value, Value]:
    x, w = dovetail.input("x", f32[64, 128]), dovetail.input("w", f32[128, 96])
    return x, w, x @ w


@pytest.mark.slow
def test_squares_are_summed_where_they_are_read_and_not_written() -> None:
    x, w, y = product()
    squares = ops.reduce_sum(y * y, axes=(-1,))
    program = dovetail.compile(Graph.of({"y": y, "squares": squares}, inputs=(x, w)), target="cpu", threads=1)
    assert anchors(program) == {"reduce_sum": 1}
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(64, 128)).astype(np.float32), "w": rng.normal(size=(128, 96)).astype(np.float32)}
    wide = feeds["x"].astype(np.float64) @ feeds["w"]
    np.testing.assert_allclose(program.run(feeds)["squares"], (wide**2).sum(-1, keepdims=True), rtol=1e-5)


def test_steps_without_a_reader_stay_with_the_product() -> None:
    x, w, y = product()
    program = dovetail.compile(Graph.of({"y": y, "squares": y * y}, inputs=(x, w)), target="cpu", threads=1)
    assert anchors(program) == {"matmul": 2}


def test_what_is_computed_in_the_memory_of_an_input_is_no_second_result() -> None:
    x, w, y = product()
    mean = dovetail.input("mean", f32[64, 96])
    graph = Graph.of({"y": y, "new": mean * 0.9 + y * 0.1}, inputs=(x, w, mean)).donate({"new": "mean"})
    program = dovetail.compile(graph, target="cpu", threads=1)
    assert anchors(program) == {}
    assert [donation.copied for donation in program.plan.donations] == [0]

"""Extremes of sizes: what constraints decide is that one, and the constraints stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import BindError
from dovetail.frontends.onnx.load import import_model
from dovetail.ir.dim import Size, largest, smallest, symbol
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.ir.leaf import input
from dovetail.ir.type import type_symbols
from dovetail.passes.known_sizes import settle_sizes
from dovetail.targets.reference.interpreter import evaluate
from tests.frontends.onnx.build import model

S = symbol("s")
TABLE = input("table", f32[64, 8])
X = input("x", f32["s", 8])
NEAR = ops.slice_(TABLE, axis=-2, start=0, stop=smallest(64, S), step=1)


def sizes(graph: Graph) -> set[str]:
    return {str(size) for v in graph.values for size in v.tensor.shape}


def test_what_meets_a_size_is_that_size() -> None:
    graph = Graph.of(NEAR + X)
    assert "min(64, s)" in sizes(graph)
    settled = settle_sizes(graph)
    assert sizes(settled) == {"64", "8", "s"}
    feeds = {"table": np.ones((64, 8), np.float32), "x": np.ones((3, 8), np.float32)}
    assert evaluate(settled, feeds)["y"].shape == (3, 8)


def test_a_bound_decides_between_two() -> None:
    few = ops.slice_(TABLE, axis=-2, start=0, stop=S, step=1)
    graph = Graph.of({"a": ops.relu(NEAR), "b": few})
    assert sizes(settle_sizes(graph)) == {"64", "8", "s"}


def test_the_constraint_is_still_checked() -> None:
    settled = settle_sizes(Graph.of(NEAR + X))
    feeds = {"table": np.ones((64, 8), np.float32), "x": np.ones((65, 8), np.float32)}
    with pytest.raises(BindError, match="equals"):
        evaluate(settled, feeds)


@pytest.mark.parametrize("extreme", [smallest, largest])
def test_what_nothing_decides_stays(extreme: Callable[[Size, Size], Size]) -> None:
    stated = ops.expand(ops.unsqueeze(input("v", f32[8]), axes=(-2,)), axis=-2, size=extreme(S, symbol("t")))
    graph = Graph.of({"y": stated, "x": X})
    assert settle_sizes(graph) is graph
    assert set(type_symbols(stated.type)) == {"s", "t"}


def test_a_length_that_a_model_limits() -> None:
    """A query reshaped by the smaller of its length and the table's, beside one that is not."""
    made = model(
        ["Shape x -> n", "Min n c -> m", "Slice table zero m zero -> near", "Add near x -> y"],
        {"x": f32["s"], "table": f32[64]},
        ["y"],
        initializers={"c": np.array([64], np.int64), "zero": np.array([0], np.int64)},
    )
    assert sizes(import_model(made)) == {"64", "s"}

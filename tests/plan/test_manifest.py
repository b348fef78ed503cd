"""What a program is given and gives, by name."""

from __future__ import annotations

import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32, i64
from dovetail.errors import GraphError
from dovetail.ir import leaf
from dovetail.plan.manifest import Manifest, manifest_of

X, W = leaf.input("x", f32["s", 4]), leaf.param("w", f32[4, 2])


def test_names_and_types_in_order() -> None:
    unread = leaf.input("unread", i64[3])
    graph = Graph.of({"b": X @ W, "a": X, "w": W}, inputs=(unread, X))
    assert manifest_of(graph) == Manifest(
        {"unread": i64[3], "x": f32["s", 4]}, {"w": f32[4, 2]}, {"b": f32["s", 2], "a": f32["s", 4], "w": f32[4, 2]}
    )
    assert list(manifest_of(graph).inputs) == ["unread", "x"]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph.of({"y": X, "z": leaf.param("x", f32[1])}), "'x' is an input and a parameter"),
        (Graph.of({"y": X, "z": leaf.input("x", f32[1])}), r"'x' is f32\[s, 4\] and f32\[1\] at once"),
        (Graph.of({"y": W, "z": leaf.param("w", f32[1])}), r"'w' is f32\[4, 2\] and f32\[1\] at once"),
        (Graph.of({"y": X @ W}, inputs=()), "is read and is no input of the graph"),
        (Graph.of({"y": ops.top_k(X, k=1, axis=-1)}), "the output y is .*, several tensors"),
    ],
)
def test_refused(graph: Graph, message: str) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        manifest_of(graph)
    assert caught.value.hint

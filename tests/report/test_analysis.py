"""Two graphs side by side."""

from __future__ import annotations

from dovetail import Graph, library, ops
from dovetail.derive.fuse import fuse
from dovetail.derive.unfuse import unfuse
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.library.linear import linear
from dovetail.passes.regions import mark_regions
from dovetail.report.analysis import analyze

X, W, B = input("x", f32[4, 8]), param("w", f32[8, 16]), param("b", f32[16])
GRAPH = Graph.of(ops.relu(X @ W + B) + ops.exp(ops.relu(X @ W + B)))


def test_what_fused_and_what_went() -> None:
    """Of five ops three are one: a linear, an exp and an add are left, with the same leaves."""
    found = analyze(GRAPH, fuse(GRAPH, library.ALL).graph)
    assert (found.nodes_before, found.nodes_after) == (8, 6)
    assert found.ops_before == {"add": 2, "exp": 1, "input": 1, "matmul": 1, "param": 2, "relu": 1}
    assert found.ops_after == {"add": 1, "exp": 1, "input": 1, "linear": 1, "param": 2}
    assert found.fused == {"linear": 1}
    assert found.changed == {"add": -1, "linear": 1, "matmul": -1, "relu": -1}
    assert str(found) == "8 → 6 nodes: add -1, linear +1, matmul -1, relu -1"


def test_regions_are_fused_values_too() -> None:
    fused = fuse(GRAPH, library.ALL).graph
    found = analyze(fused, mark_regions(fused).graph)
    assert found.fused == {"region": 1}
    assert found.changed == {"add": -1, "exp": -1, "region": 1}


def test_the_other_way_round_nothing_is_fused() -> None:
    fused = fuse(GRAPH, library.ALL).graph
    found = analyze(fused, unfuse(fused))
    assert not found.fused
    assert found.changed == {"add": 1, "linear": -1, "matmul": 1, "relu": 1}


def test_only_what_is_new_counts() -> None:
    before = Graph.of(linear(X, W, B))
    after = Graph.of(linear(linear(X, W, B), param("v", f32[16, 4])))
    assert analyze(before, after).fused == {"linear": 1}
    assert analyze(after, after).changed == {}
    assert str(analyze(after, after)) == "6 → 6 nodes: nothing changed"


def test_leaves_that_nobody_reads_do_not_count() -> None:
    wide = Graph.of(X @ W, inputs=(X, input("unread", f32[4])))
    assert analyze(wide, wide).nodes_before == 3

"""Graphs, who uses what, and the builder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import GraphError
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, i64
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Builder, Graph, Subgraph, subgraphs, walk_into
from dovetail.ir.origin import Origin, merge, scope
from dovetail.ir.value import make
from tests.ir.graphs import anything, nested

X, Y = leaf.input("x", f32["s", 4]), leaf.input("y", f32["t", 4])


def test_uses_are_counted_with_multiplicity() -> None:
    square = X * X
    graph = Graph.of(square + X)
    assert graph.uses.count(X) == 3
    assert graph.uses.readers[X] == [square, square, graph.outputs["y"]]
    assert graph.uses.count(square) == 1


def test_being_an_output_is_a_use() -> None:
    square = X * X
    graph = Graph.of({"a": square, "b": square, "c": ops.relu(square)})
    assert graph.uses.count(square) == 3
    assert graph.uses.is_output(square)
    assert not graph.uses.is_output(X)
    assert graph.uses.count(ops.relu(square)) == 1


def test_inputs_are_listed_as_they_are_met_unless_given() -> None:
    assert Graph.of(ops.concat(Y, X, axis=0)).inputs == (Y, X)
    assert Graph.of(ops.relu(X), inputs=[Y, X]).inputs == (Y, X)


def test_what_a_graph_counts() -> None:
    w = leaf.param("w", f32[4, 4])
    graph = Graph.of(ops.relu(X @ w) + ops.relu(X @ w))
    assert graph.count() == 5
    assert graph.count(ops.relu) == 1
    assert graph.count(ops.exp) == 0
    assert graph.parameters == (w,)
    assert graph.symbols == ("s",)


def test_constraints_of_values_and_of_what_was_rewritten_away() -> None:
    kept = Constraint(X.shape[0], "at_least", 2, "before")
    summed = X + Y
    graph = Graph("g", (X, Y), {"y": summed}, assumed=(kept,))
    assert [str(c) for c in graph.constraints] == ["s at_least 2", "s equals t"]
    after = graph.replace({"y": X}, {})
    assert after.assumed == graph.constraints
    assert (after.inputs, after.name) == (graph.inputs, graph.name)


def test_constraints_inside_sub_graphs_count() -> None:
    rows = (f32["s", 4], f32["t", 4])
    body = Subgraph(rows, (leaf.argument(0, rows[0]) + leaf.argument(1, rows[1]),))
    inner = make(anything, (), {"bodies": (body,)})
    graph = Graph.of(make(anything, (X, Y), {"body": Subgraph((), (inner,))}))
    assert [str(c) for c in graph.constraints] == ["s equals t"]


def test_sub_graphs_are_found_in_attributes_and_tuples() -> None:
    graph = nested()
    (both,) = [v for v in graph.values if subgraphs(v)]
    assert subgraphs(both) == [both.attrs["then"], both.attrs["otherwise"]]
    everything = walk_into(graph.outputs.values())
    assert len(set(everything)) == len(everything)
    assert {v.op.name for v in everything} == {"input", "if", "item", "argument", "mul", "const", "relu"}
    assert set(graph.values) < set(everything)


def test_the_builder_collects_what_is_declared() -> None:
    builder = Builder("m")
    x = builder.input("x", f32[2])
    unused = builder.input("unused", i64[3])
    w = builder.param("w", f32[2], np.ones(2, np.float32))
    assert builder.input("x", f32[2]) is x
    builder.output("y", x + w)
    builder.output("y", x + w)
    graph = builder.graph()
    assert graph.inputs == (x, unused)
    assert list(graph.params) == ["w"]
    assert graph.name == "m"


def test_the_builder_refuses_names_that_mean_two_things() -> None:
    builder = Builder()
    builder.input("x", f32[2])
    builder.param("w", f32[2])
    declarations: list[Any] = [(builder.input, "x", f32[3]), (builder.param, "x", f32[2]), (builder.input, "w", f32[2])]
    for declare, name, type in declarations:
        with pytest.raises(GraphError, match="at once"):
            declare(name, type)
    builder.output("y", X)
    with pytest.raises(GraphError, match="two outputs are named 'y'"):
        builder.output("y", Y)
    with pytest.raises(GraphError, match="has no outputs"):
        Builder("empty").graph()


def test_origins_are_scopes_or_else_lines() -> None:
    builder = Builder()
    with builder.recording():
        x = builder.input("x", f32[2])
        with scope("layers"), scope("0"):
            inner = ops.relu(x)
        builder.output("y", inner)
    graph = builder.graph()
    assert graph.origins[inner] == (Origin("module", "layers.0"),)
    (line,) = graph.origins[x]
    assert line.kind == "source"
    assert line.name.startswith("test_graph.py:")
    assert graph.where(inner) == "layers.0"
    assert graph.where(X) == ""


def test_origins_of_one_value_written_twice_are_merged() -> None:
    builder = Builder(lines=False)
    with builder.recording():
        x = builder.input("x", f32[2])
        for name in ("a", "b", "a"):
            with scope(name):
                builder.output(f"y{name}", ops.relu(x))
    assert builder.graph().origins[ops.relu(x)] == (Origin("module", "a"), Origin("module", "b"))
    assert x not in builder.graph().origins


def test_origins_inside_sub_graphs_are_kept() -> None:
    builder = Builder(lines=False)
    with builder.recording():
        x = builder.input("x", f32[2])
        with scope("body"):
            inner = ops.relu(leaf.argument(0, f32[2]))
        builder.output("y", make(anything, (x,), {"body": Subgraph((f32[2],), (inner,))}))
    assert builder.graph().origins[inner] == (Origin("module", "body"),)


def test_nothing_is_recorded_outside() -> None:
    builder = Builder()
    with builder.recording():
        builder.input("x", f32[2])
    with scope("nowhere"):
        value = ops.exp(leaf.input("x", f32[2]))
    builder.output("y", value)
    assert value not in builder.graph().origins


def test_merging_keeps_order_and_drops_copies() -> None:
    a, b, c = (Origin("module", name) for name in "abc")
    assert merge((a, b), (b, c), (a,)) == (a, b, c)
    assert merge() == ()

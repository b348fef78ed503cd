"""What is computed once, when parameters are bound."""

from __future__ import annotations

import numpy as np

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.graph import Subgraph
from dovetail.plan.phases import bind_values
from dovetail.plan.plan import make_plan
from dovetail.targets.reference.claims import CLAIMS as REFERENCE

X = leaf.input("x", f32["s", 4])
W, V = leaf.param("w", f32[4, 8]), leaf.param("v", f32[4, 8])


def test_weights_are_joined_once() -> None:
    """Trap: three weights of one input are concatenated at every run."""
    joined = ops.concat(W, ops.neg(V), axis=-1)
    graph = Graph.of(X @ joined)
    plan = make_plan(graph, target=REFERENCE)
    assert [s.value for s in plan.phase("bind")] == [ops.neg(V), joined]
    assert [s.value.op for s in plan.phase("run")] == [ops.matmul]
    assert plan.slots[joined].pool == "bound" and plan.bound_size == 256
    assert plan.slots[ops.neg(V)].pool == "scratch" and plan.scratch_size == 128


def test_parameters_and_constants_alone() -> None:
    scaled = W * leaf.constant(np.full((1,), 2.0), f32)
    counted = ops.iota(size=8, dtype=f32)
    graph = Graph.of(X @ scaled + counted)
    assert bind_values(graph) == {W, *scaled.operands, scaled, counted}


def test_sizes_that_only_an_input_tells_wait_for_the_run() -> None:
    s = symbol("s")
    stretched = ops.expand(leaf.param("row", f32[1, 4]), axis=0, size=s) * 2.0
    window = ops.neg(ops.slice_(leaf.param("table", f32[9]), axis=0, start=s, stop=s + 1))
    graph = Graph.of({"y": X + stretched, "z": window})
    assert not {stretched, window} & bind_values(graph)
    known = ops.neg(leaf.param("table", f32["t", 4]))
    grown = ops.concat(known, ops.expand(leaf.param("row", f32[1, 4]), axis=0, size=symbol("t")), axis=0)
    assert {known, grown} <= bind_values(Graph.of(X @ ops.permute(grown, order=(-1, -2))))


def test_sizes_inside_a_body_count() -> None:
    s = symbol("s")
    table = leaf.param("table", f32[9])
    inner = ops.slice_(leaf.argument(0, f32[9]), axis=0, start=s, stop=s + 1)
    chosen = ops.if_(
        leaf.constant(np.array(True)),
        table,
        then=Subgraph((f32[9],), (inner,)),
        otherwise=Subgraph((f32[9],), (ops.slice_(leaf.argument(0, f32[9]), axis=0, start=0, stop=1),)),
    )
    assert chosen not in bind_values(Graph.of({"y": X, "z": chosen[0]}))


def test_sizes_found_at_bind_time_are_known_there() -> None:
    n = symbol("n")
    places = ops.nonzero(W, count=n)
    doubled = places * 2
    ones = ops.expand(leaf.constant(np.ones(1), f32), axis=0, size=n)
    graph = Graph.of({"y": X, "places": doubled, "ones": ones * 1.0})
    assert {places, doubled, ones} <= bind_values(graph)
    plan = make_plan(graph, target=REFERENCE)
    assert plan.slots[places].pool == plan.slots[doubled].pool == "heap"

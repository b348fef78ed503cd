"""shared_input_matmul: several matmuls of one input as one wide matmul and views of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dovetail import Builder, Graph, Value, ops
from dovetail.declare.cost import is_free
from dovetail.derive.fuse import Fused, fuse
from dovetail.derive.join import join
from dovetail.derive.missed import COST, CYCLE
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.leaf import input, param
from dovetail.ir.origin import scope
from dovetail.ir.walk import walk
from dovetail.library import ALL, GROUPS
from dovetail.library.linear import linear
from tests.library import judge
from tests.library.judge import names, near, numbers, run

X = input("x", f32[16, 64])


def weight(name: str, width: int) -> Value:
    return param(name, f32[64, width])


def joined(outputs: Sequence[Value]) -> Fused:
    return join(Graph.of({f"y{i}": v for i, v in enumerate(outputs)}), GROUPS)


def test_query_key_and_value_make_9_nodes_with_three_views() -> None:
    result = joined([X @ weight(name, 64) for name in ("q", "k", "v")])
    assert result.graph.count() == 9
    assert names(result.graph) == ["concat", "matmul", "part", "part", "part"]
    assert all(is_free(v) for v in result.graph.outputs.values())
    (applied,) = result.applied
    assert (applied.rule, len(applied.covers), applied.value.op) == ("shared_input_matmul", 3, ops.matmul)
    arrays = numbers(result.graph)
    for i, name in enumerate(("q", "k", "v")):
        near(run(result.graph, arrays)[f"y{i}"], arrays["x"] @ arrays[name])


def test_widths_4_1_16_16_make_four_views() -> None:
    widths = (4, 1, 16, 16)
    result = joined([X @ weight(f"w{i}", width) for i, width in enumerate(widths)])
    assert names(result.graph) == ["concat", "matmul", "slice", "slice", "slice", "slice"]
    assert [v.shape[-1] for v in result.graph.outputs.values()] == list(widths)
    arrays = numbers(result.graph)
    for i in range(4):
        near(run(result.graph, arrays)[f"y{i}"], arrays["x"] @ arrays[f"w{i}"])


def test_the_weights_are_joined_when_parameters_are_bound() -> None:
    result = joined([X @ weight("a", 8), X @ weight("b", 8)])
    (concat,) = (v for v in result.graph.values if v.op is ops.concat)
    assert all(v.op is not leaf.INPUT for v in walk([concat]))


def test_weights_that_a_run_is_given_would_be_joined_at_every_run() -> None:
    a, b = input("a", f32[64, 512]), input("b", f32[64, 512])
    result = joined([X @ a, X @ b])
    assert [(m.rule, m.reason) for m in result.missed] == [("shared_input_matmul", COST)]
    assert result.graph.count(ops.concat) == 0


def test_a_weight_declared_after_its_reader() -> None:
    first = X @ weight("a", 8)
    late = ops.relu(first)
    result = joined([late, X @ weight("b", 8)])
    assert names(result.graph) == ["concat", "matmul", "part", "relu", "part"]
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["y0"], judge.relu(arrays["x"] @ arrays["a"]))
    near(got["y1"], arrays["x"] @ arrays["b"])


@pytest.mark.parametrize("widths", [(8, 8, 8), (8, 4, 12)])
def test_biases_are_joined_with_the_weights(widths: tuple[int, ...]) -> None:
    members = [X @ weight(f"w{i}", n) + param(f"b{i}", f32[n]) for i, n in enumerate(widths)]
    fused = fuse(Graph.of({f"y{i}": v for i, v in enumerate(members)}), ALL)
    assert fused.graph.count(linear) == 3
    result = join(fused.graph, GROUPS)
    assert (result.graph.count(linear), result.graph.count(ops.concat)) == (1, 2)
    arrays = numbers(result.graph)
    for i in range(3):
        near(run(result.graph, arrays)[f"y{i}"], arrays["x"] @ arrays[f"w{i}"] + arrays[f"b{i}"])


def test_members_of_different_forms_are_joined_among_themselves() -> None:
    plain = [X @ weight(f"p{i}", 8) for i in range(2)]
    gated = [linear(X, weight(f"g{i}", 8), act="silu") for i in range(2)]
    result = joined([*plain, *gated, linear(X, weight("alone", 8), act="relu")])
    assert (result.graph.count(ops.matmul), result.graph.count(linear)) == (1, 2)
    assert [a.variant for a in result.applied] == ["2 members", "2 members"]
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["y1"], arrays["x"] @ arrays["p1"])
    near(got["y2"], judge.silu(arrays["x"] @ arrays["g0"]))
    near(got["y4"], judge.relu(arrays["x"] @ arrays["alone"]))


def test_a_member_that_does_not_fit_stays_out_alone() -> None:
    batched = param("batched", f32[3, 64, 8])
    result = joined([X @ weight("a", 8), X @ batched, X @ weight("b", 8)])
    assert result.graph.count(ops.matmul) == 2
    (missed,) = result.missed
    assert (missed.rule, missed.reason) == ("shared_input_matmul", "weight_is_a_matrix")
    assert missed.root is X @ batched
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["y0"], arrays["x"] @ arrays["a"])
    near(got["y1"], np.matmul(arrays["x"], arrays["batched"]))
    near(got["y2"], arrays["x"] @ arrays["b"])


def test_a_lone_matmul_is_neither_joined_nor_missed() -> None:
    z = input("z", f32[16, 64])
    result = joined([X @ weight("a", 8), z @ weight("b", 8)])
    assert (result.applied, result.missed) == ((), ())
    assert result.graph.outputs["y0"] is X @ weight("a", 8)


def test_a_member_that_needs_another_members_result_stays_out() -> None:
    square = input("s", f32[64, 64])
    first, other = square @ weight("a", 64), square @ weight("b", 64)
    dependent = square @ ops.exp(first)
    result = joined([first, other, dependent])
    assert [(m.reason, m.root) for m in result.missed] == [(CYCLE, dependent)]
    assert result.graph.count(ops.matmul) == 2
    arrays = {k: v / 64 for k, v in numbers(result.graph).items()}
    product = arrays["s"] @ arrays["a"]
    near(run(result.graph, arrays)["y2"], arrays["s"] @ np.exp(product))


def test_two_groups_in_a_chain() -> None:
    first = [X @ weight(f"a{i}", 64) for i in range(2)]
    hidden = first[0] * ops.sigmoid(first[1])
    second = [hidden @ weight(f"b{i}", 8) for i in range(2)]
    result = joined(second)
    assert (result.graph.count(ops.matmul), len(result.applied)) == (2, 2)
    arrays = numbers(result.graph)
    gate = (arrays["x"] @ arrays["a0"]) * judge.sigmoid(arrays["x"] @ arrays["a1"])
    near(run(result.graph, arrays)["y1"], gate @ arrays["b1"])


def test_a_product_that_is_an_output_and_read_elsewhere() -> None:
    a, b = X @ weight("a", 8), X @ weight("b", 8)
    result = joined([a, a + b])
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["y0"], arrays["x"] @ arrays["a"])
    near(got["y1"], arrays["x"] @ (arrays["a"] + arrays["b"]))


def test_every_view_keeps_its_own_origin_and_the_matmul_has_all() -> None:
    builder = Builder("qkv")
    with builder.recording():
        x = builder.input("x", f32[16, 64])
        for name in ("q", "k"):
            w = builder.param(name, f32[64, 8])
            with scope(name):
                builder.output(name, x @ w)
    graph = join(builder.graph(), GROUPS).graph
    origins = {v.op.name: sorted(map(str, graph.origins[v])) for v in graph.values if v.op is ops.matmul}
    assert origins == {"matmul": ["k", "q"]}
    for name, view in graph.outputs.items():
        assert [str(o) for o in graph.origins[view]] == [name]


def test_nothing_changes_where_nothing_is_shared() -> None:
    graph = Graph.of(X @ weight("a", 8))
    assert join(graph, GROUPS).graph.outputs["y"] is graph.outputs["y"]


def test_symbolic_rows() -> None:
    x = input("x", f32["b", "s", 64])
    result = joined([x @ weight("a", 8), x @ weight("b", 4)])
    assert names(result.graph) == ["concat", "matmul", "slice", "slice"]
    assert [str(v.type) for v in result.graph.outputs.values()] == ["f32[b, s, 8]", "f32[b, s, 4]"]

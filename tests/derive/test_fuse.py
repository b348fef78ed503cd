"""Fusing: what is taken, what is refused, and that values stay right either way."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.declare import Cost, fused_op
from dovetail.derive.fuse import fuse, strata
from dovetail.derive.missed import COST, CYCLE, NEAR, PRIVATE
from dovetail.derive.unfuse import unfuse
from dovetail.dtypes import f32
from dovetail.ir.graph import Builder
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.ir.origin import scope
from dovetail.targets.reference.interpreter import evaluate


@fused_op(shapes="x[*, m, k] w[k, n] b[n]")
def dense(x: Value, w: Value, b: Value | None = None, *, act: Literal["none", "relu"] = "none") -> Value:
    """act(x @ w + b)."""
    y = x @ w if b is None else x @ w + b
    return ops.relu(y) if act == "relu" else y


@fused_op(shapes="x[*, n] r[*, n] g[n]")
def add_scale(x: Value, r: Value, g: Value, *, keep: Literal[False, True] = False) -> Value | tuple[Value, ...]:
    """exp(x + r) * g, and the sum."""
    total = x + r
    y = ops.exp(total) * g
    return (y, total) if keep else y


# Large enough that arithmetic and traffic decide, not the cost of starting a kernel.
X, W, B = input("x", f32[256, 128]), param("w", f32[128, 512]), param("b", f32[512])
P, Q, G = input("p", f32[256, 128]), input("q", f32[256, 128]), param("g", f32[128])


def numbers(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shape = {v.attrs["name"]: [int(str(s)) for s in v.shape] for v in (*graph.inputs, *graph.parameters)}
    return {name: rng.normal(size=s).astype(np.float32) for name, s in shape.items()}


def same_values(graph: Graph, other: Graph) -> None:
    arrays = numbers(graph)
    inputs = {str(v.attrs["name"]) for v in graph.inputs}
    feeds = {k: v for k, v in arrays.items() if k in inputs}
    params = {k: v for k, v in arrays.items() if k not in inputs}
    wanted = evaluate(graph, feeds, params=params, lift=True)
    got = evaluate(other, feeds, params=params, lift=True)
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-12)


def test_the_largest_variant_is_taken() -> None:
    graph = Graph.of(ops.relu(X @ W + B))
    fused = fuse(graph, [dense])
    assert fused.graph.outputs["y"] is dense(X, W, B, act="relu")
    assert [a.rule for a in fused.applied] == ["dense"]
    same_values(graph, fused.graph)


def test_nothing_changes_where_nothing_matches() -> None:
    graph = Graph.of(ops.exp(X))
    assert fuse(graph, [dense]).graph.outputs["y"] is graph.outputs["y"]


def test_a_bare_matmul_is_neither_fused_nor_missed() -> None:
    fused = fuse(Graph.of(X @ W), [dense], near=True)
    assert (fused.applied, fused.missed) == ((), ())


def test_an_inner_value_that_is_an_output_keeps_its_own_value() -> None:
    product = X @ W
    graph = Graph.of({"y": ops.relu(product + B), "inner": product})
    fused = fuse(graph, [dense])
    assert [m.reason for m in fused.missed] == [PRIVATE]
    assert fused.graph.outputs["inner"] is product
    same_values(graph, fused.graph)


def test_a_cheap_inner_value_is_computed_twice_where_that_pays() -> None:
    @fused_op(shapes="x[*, n]")
    def chain(x: Value) -> Value:
        """Four steps in one."""
        return ops.exp(ops.exp(ops.exp(ops.exp(x))))

    first = ops.exp(P)
    graph = Graph.of({"y": ops.exp(ops.exp(ops.exp(first))), "first": first})
    fused = fuse(graph, [chain])
    assert fused.graph.outputs["y"] is chain(P)
    assert fused.graph.outputs["first"] is first


def test_a_second_result_is_taken_from_the_fused_value() -> None:
    total = P + Q
    graph = Graph.of({"y": ops.exp(total) * G, "next": ops.relu(total)})
    fused = fuse(graph, [add_scale])
    value = add_scale(P, Q, G, keep=True)
    assert fused.graph.outputs["y"] is value[0]
    assert fused.graph.outputs["next"] is ops.relu(value[1])
    same_values(graph, fused.graph)


def test_a_private_sum_needs_no_second_result() -> None:
    assert fuse(Graph.of(ops.exp(P + Q) * G), [add_scale]).graph.outputs["y"] is add_scale(P, Q, G)


@fused_op(shapes="x[*, n] r[*, n] g[n]")
def always_both(x: Value, r: Value, g: Value) -> tuple[Value, Value]:
    """exp(x + r) * g and the sum, never one alone."""
    total = x + r
    return ops.exp(total) * g, total


def test_a_result_that_feeds_its_own_operand_is_refused() -> None:
    total = P + Q
    graph = Graph.of({"y": ops.exp(total) * ops.reduce_sum(total, axes=(-2,)), "t": total})
    fused = fuse(graph, [always_both])
    assert [m.reason for m in fused.missed] == [CYCLE]
    same_values(graph, fused.graph)
    same_values(graph, fuse(graph, [add_scale]).graph)


def test_two_fusions_that_would_read_each_other_are_not_both_taken() -> None:
    """Each gain is computed from the other's sum: only one of the two can have a second result."""
    s, t = P + Q, P * 2.0 + Q
    one, two = ops.exp(s) * ops.reduce_max(t, axes=(-2,)), ops.exp(t) * ops.reduce_max(s, axes=(-2,))
    graph = Graph.of({"a": one, "b": two, "s": s, "t": t})
    fused = fuse(graph, [always_both])
    assert CYCLE in {m.reason for m in fused.missed}
    assert len(fused.applied) == 1
    same_values(graph, fused.graph)


def test_cost_can_refuse() -> None:
    @fused_op(shapes="x[*, n]")
    def slow(x: Value) -> Value:
        """Two steps, slowly."""
        return ops.exp(ops.log(x))

    @slow.cost
    def reads_everything_ten_times(x: Value) -> Cost:
        """Ten times the traffic."""
        return Cost(0, 10**9)

    (missed,) = fuse(Graph.of(ops.exp(ops.log(X))), [slow]).missed
    assert missed.reason == COST
    assert reads_everything_ten_times is not None


def test_a_miss_that_another_rule_makes_good_is_no_miss() -> None:
    @fused_op(shapes="x[*, m, k] w[k, n] d[*, m, n]")
    def matmul_plus(x: Value, w: Value, d: Value) -> Value:
        """x @ w + d."""
        return x @ w + d

    @fused_op(shapes="x[*, m, k] w[k, n] b[n]")
    def picky(x: Value, w: Value, b: Value) -> Value:
        """x @ w + b."""
        return x @ w + b

    @picky.requires(reason="{b.type}", hint="")
    def bias_is_a_vector(b: Value) -> bool:
        return b.rank == 1

    graph = Graph.of(X @ W + input("d", f32[256, 512]))
    assert [m.reason for m in fuse(graph, [picky]).missed] == ["bias_is_a_vector"]
    assert fuse(graph, [picky, matmul_plus]).missed == ()
    assert bias_is_a_vector is not None


def test_one_miss_for_the_largest_attempt_only() -> None:
    graph = Graph.of({"y": ops.relu(X @ W + B), "inner": X @ W})
    assert len(fuse(graph, [dense]).missed) == 1


def test_an_activation_that_no_variant_takes_is_a_near_miss() -> None:
    fused = fuse(Graph.of(ops.exp(X @ W + B)), [dense], near=True)
    assert fused.graph.count() == 5
    (missed,) = fused.missed
    assert (missed.reason, missed.root.op) == (NEAR, ops.exp)
    assert missed.message == "all but one op match: found exp, where dense takes relu"


def test_origins_of_everything_swallowed_go_to_the_fused_value() -> None:
    builder = Builder()
    with builder.recording():
        with scope("up"):
            y = X @ W
        with scope("bias"):
            y = y + B
        with scope("act"):
            y = ops.relu(y)
    builder.output("y", y)
    fused = fuse(builder.graph(), [dense]).graph
    assert sorted(str(o) for o in fused.origins[fused.outputs["y"]]) == ["act", "bias", "up"]
    spelled = unfuse(fused)
    assert all(spelled.where(v) for v in spelled.values if v.operands)


def test_an_op_waits_for_the_ops_that_it_is_made_of() -> None:
    @fused_op(shapes="x[*, n]", stage="recognise")
    def gate(x: Value) -> Value:
        """x * sigmoid(x)."""
        return x * ops.sigmoid(x)

    @fused_op(shapes="x[*, n] y[*, n]")
    def gated(x: Value, y: Value) -> Value:
        """gate(x) * y."""
        return gate(x) * y

    assert strata([gated, gate]) == [[gate], [gated]]
    assert fuse(Graph.of((P * ops.sigmoid(P)) * Q), [gated, gate]).graph.outputs["y"] is gated(P, Q)


@pytest.mark.heavy
@pytest.mark.parametrize("length", [20_000])
def test_long_chains_neither_recurse_nor_explode(length: int) -> None:
    value: Value = X
    for _ in range(length // 2):
        value = ops.relu(value + 1.0)
    fused = fuse(Graph.of(value), [dense, add_scale], near=True)
    assert fused.graph.count() == length + 2

"""Rebuilding: roots are replaced, the dead go, origins and promises stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.origin import Origin
from dovetail.ir.rewrite import CyclicReplacementError, Replacement, rebuild, replace_roots
from dovetail.ir.value import Value, make
from dovetail.ir.verify import verify
from tests.ir.graphs import anything, nested

X, Y = leaf.input("x", f32["s"]), leaf.input("y", f32["t"])


def at(name: str) -> tuple[Origin, ...]:
    return (Origin("module", name),)


def relu_to_exp(value: Value, operands: tuple[Value, ...]) -> Value | None:
    return ops.exp(operands[0]) if value.op is ops.relu else None


def nothing(value: Value, operands: tuple[Value, ...]) -> Value | None:
    return None


def test_a_step_that_changes_nothing_gives_the_same_graph() -> None:
    for graph in (nested(), Graph.of(ops.relu(X))):
        assert rebuild(graph, nothing) is graph
        assert replace_roots(graph, {}) is graph


def test_every_value_is_offered_once_operands_first() -> None:
    shared = ops.relu(X)
    graph = Graph.of(ops.neg(shared) * shared)
    seen: list[Value] = []

    def note(value: Value, operands: tuple[Value, ...]) -> Value | None:
        assert all(v in seen for v in value.operands)
        seen.append(value)
        return None

    rebuild(graph, note)
    assert seen == graph.values


def test_replaced_values_have_replaced_operands() -> None:
    graph = Graph.of({"y": ops.relu(ops.neg(ops.relu(X))), "x": X})
    after = rebuild(graph, relu_to_exp)
    assert after.outputs["y"] is ops.exp(ops.neg(ops.exp(X)))
    assert after.outputs["x"] is X
    assert after.inputs == graph.inputs
    verify(after)


def test_sub_graphs_are_entered_unless_asked_not_to() -> None:
    inner = Subgraph((f32["s"],), (ops.relu(leaf.argument(0, f32["s"])),))
    outer = Subgraph((f32["s"],), (make(anything, (leaf.argument(0, f32["s"]),), {"body": inner}),))
    value = make(anything, (X,), {"bodies": (1, outer)})
    graph = Graph("g", (X,), {"y": value}, {inner.results[0]: at("deep")})
    after = rebuild(graph, relu_to_exp)
    changed = after.outputs["y"].attrs["bodies"][1].results[0].attrs["body"].results[0]
    assert changed is ops.exp(leaf.argument(0, f32["s"]))
    assert after.origins == {changed: at("deep")}
    assert rebuild(graph, relu_to_exp, into_subgraphs=False) is graph
    verify(after)


def test_origins_follow_and_merge() -> None:
    first, second = ops.relu(X), ops.exp(X)
    graph = Graph("g", (X,), {"y": ops.neg(first) + ops.neg(second)}, {first: at("a"), second: at("b"), X: at("in")})
    after = rebuild(graph, relu_to_exp)
    assert after.origins[second] == (*at("a"), *at("b"))
    assert after.origins[X] == at("in")
    assert first not in after.origins


def test_all_values_of_a_replacement_answer_for_the_old_one() -> None:
    old = ops.relu(X)
    graph = Graph("g", (X,), {"y": old}, {old: at("a")})
    after = rebuild(graph, lambda v, o: ops.exp(ops.neg(o[0])) if v is old else None)
    assert after.origins == {ops.exp(ops.neg(X)): at("a"), ops.neg(X): at("a")}


def test_promises_of_replaced_values_are_kept() -> None:
    graph = Graph.of(ops.relu(X + Y))
    after = rebuild(graph, lambda v, o: X if v.op is ops.add else None)
    assert after.outputs["y"] is ops.relu(X)
    assert [str(c) for c in after.assumed] == ["s equals t"]


def built(op: Callable[[Value], Value], x: Value) -> Callable[[Callable[[Value], Value]], Value]:
    """An op on what stands in place of a value."""
    return lambda new: op(new(x))


def test_roots_are_replaced_and_their_interior_goes() -> None:
    inner = ops.neg(X)
    root = ops.relu(inner)
    graph = Graph("g", (X,), {"y": ops.exp(root)}, {inner: at("inner"), root: at("root")})
    after = replace_roots(graph, {root: Replacement((X,), built(ops.tanh, X), (inner,))})
    assert after.outputs["y"] is ops.exp(ops.tanh(X))
    assert after.origins[ops.tanh(X)] == (*at("inner"), *at("root"))
    assert inner not in after.values


def test_an_interior_that_someone_else_reads_stays() -> None:
    inner = ops.neg(X)
    root = ops.relu(inner)
    graph = Graph.of({"y": root, "z": inner})
    after = replace_roots(graph, {root: Replacement((X,), built(ops.tanh, X), (inner,))})
    assert after.outputs == {"y": ops.tanh(X), "z": inner}


def test_replacements_may_read_each_other_but_not_in_a_circle() -> None:
    left, right = ops.neg(X), ops.exp(X)
    graph = Graph.of(left + right)
    chained = {
        left: Replacement((right,), built(ops.tanh, right)),
        right: Replacement((X,), built(ops.sin, X)),
    }
    assert replace_roots(graph, chained).outputs["y"] is ops.tanh(ops.sin(X)) + ops.sin(X)
    chained[right] = Replacement((left,), built(ops.sin, left))
    with pytest.raises(CyclicReplacementError) as caught:
        replace_roots(graph, chained)
    assert caught.value.root in (left, right)


def test_origins_inside_sub_graphs_survive_replaced_roots() -> None:
    graph = nested()
    (x,) = [v for v in graph.inputs if v.attrs["name"] == "x"]
    root = graph.outputs["y"]
    after = replace_roots(graph, {root: Replacement((x,), built(ops.neg, x))})
    inner = [v for v in graph.origins if v.op is ops.relu]
    assert [after.origins.get(v) for v in inner] == [graph.origins[v] for v in inner]


def test_items_of_what_became_a_pack_are_what_was_packed() -> None:
    pair = ops.top_k(leaf.input("r", f32[5]), axis=-1, k=2, largest=True)
    graph = Graph.of(ops.relu(pair[0]))
    w = leaf.input("w", f32[2])
    after = rebuild(graph, lambda v, o: leaf.pack((w, w)) if v is pair else None)
    assert after.outputs["y"] is ops.relu(w)

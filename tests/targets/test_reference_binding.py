"""What the interpreter is given: names, dtypes, shapes, symbols, and sizes that depend on data."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32, i64
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ops.indexing import nonzero
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.judged import ones, refusal_of

# Names, dtypes, shapes ------------------------------------------------------------------------------------------


@pytest.fixture
def scaled() -> Graph:
    """x[s, 4] * w[4]"""
    return Graph.of(leaf.input("x", f32["s", 4]) * leaf.param("w", f32[4]))


W = {"w": ones(4)}


def test_missing_and_unknown_names(scaled: Graph) -> None:
    assert "input x (f32[s, 4]) is missing" in refusal_of(scaled, {}, params=W).message
    assert "parameter w (f32[4]) is missing" in refusal_of(scaled, {"x": ones(2, 4)}).message
    unknown = refusal_of(scaled, {"x": ones(2, 4), "z": ones(1)}, params=W)
    assert "'z'" in unknown.message and "x" in unknown.hint
    assert "'v'" in refusal_of(scaled, {"x": ones(2, 4)}, params={**W, "v": ones(1)}).message
    assert "params" in refusal_of(scaled, {"x": ones(2, 4), "w": ones(4)}).hint
    assert "inputs" in refusal_of(scaled, {}, params={**W, "x": ones(2, 4)}).hint


def test_an_input_that_nothing_reads_is_wanted_all_the_same() -> None:
    x, z = leaf.input("x", f32[1]), leaf.input("z", f32[1])
    graph = Graph.of(x + x, inputs=(x, z))
    assert "z" in refusal_of(graph, {"x": ones(1)}).message


def test_wrong_dtype_rank_and_shape(scaled: Graph) -> None:
    found = refusal_of(scaled, {"x": np.ones((2, 4))}, params=W)
    assert "float64" in found.message and "f32[s, 4]" in found.message and "float32" in found.hint
    assert "3 axes" in refusal_of(scaled, {"x": ones(2, 4, 1)}, params=W).message
    assert "axis 1 is 5, not 4" in refusal_of(scaled, {"x": ones(2, 5)}, params=W).message
    assert "list" in refusal_of(scaled, {"x": [[1.0, 2.0, 3.0, 4.0]]}, params=W).message
    assert "object" in refusal_of(scaled, {"x": np.array([None])}, params=W).message


def test_byte_order_does_not_matter(scaled: Graph) -> None:
    found = evaluate(scaled, {"x": np.full((1, 4), 3, ">f4")}, params=W)["y"]
    assert found.dtype == np.float32 and found.tolist() == [[3, 3, 3, 3]]


# Symbols --------------------------------------------------------------------------------------------------------


def test_symbols_are_bound_by_shapes_and_used_by_attributes() -> None:
    s = symbol("s")
    x = leaf.input("x", f32["s", 2])
    graph = Graph.of(ops.slice_(x, axis=0, start=s - 2, stop=s))
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    assert evaluate(graph, {"x": rows})["y"].tolist() == [[6, 7], [8, 9]]
    assert evaluate(graph, {"x": rows[:3]})["y"].tolist() == [[2, 3], [4, 5]]
    refused = refusal_of(graph, {"x": rows[:1]})
    assert "s-2" in refused.message and "slice" in refused.hint


def test_affine_sizes_are_solved_and_the_rest_is_checked() -> None:
    s, t = symbol("s"), symbol("t")
    a = leaf.input("a", TensorType(f32, (s * 2 + t,)))
    b = leaf.input("b", TensorType(f32, (s * 3 + 1,)))
    c = leaf.input("c", TensorType(f32, (s * t,)))
    total = ops.reduce_sum(a, axes=(0,)) + ops.reduce_sum(b, axes=(0,)) + ops.reduce_sum(c, axes=(0,))
    graph = Graph.of({"y": total, "t": ops.expand(total, axis=0, size=t)})
    # b says s = 2, then c says t = 5, then a must be 9.
    found = evaluate(graph, {"a": ones(9), "b": ones(7), "c": ones(10)})
    assert found["y"].tolist() == [26.0] and found["t"].shape == (5,)
    assert "no s makes 3*s+1 equal to 6" in refusal_of(graph, {"a": ones(9), "b": ones(6), "c": ones(10)}).message
    clash = refusal_of(graph, {"a": ones(9), "b": ones(7), "c": ones(12)})
    assert "2*s+t is 10 with s = 2, t = 6" in clash.message
    assert "no t makes" in refusal_of(graph, {"a": ones(9), "b": ones(7), "c": ones(11)}).message
    assert "no s makes" in refusal_of(Graph.of(b * 2.0), {"b": ones(0)}).message


def test_symbols_that_no_shape_tells() -> None:
    s = symbol("s")
    graph = Graph.of(leaf.input("x", TensorType(f32, (s * s,))) * 2.0)
    assert "does not tell what s is" in refusal_of(graph, {"x": ones(9)}).message
    assert evaluate(graph, {"x": ones(9)}, sizes={"s": 3})["y"].shape == (9,)
    assert "s*s is 16" in refusal_of(graph, {"x": ones(9)}, sizes={"s": 4}).message
    one = leaf.input("one", f32[1])
    unbound = refusal_of(Graph.of(ops.expand(one, axis=0, size=s)), {"one": ones(1)})
    assert "s" in unbound.message
    assert evaluate(Graph.of(ops.expand(one, axis=0, size=s)), {"one": ones(1)}, sizes={"s": 3})["y"].shape == (3,)


def test_one_symbol_has_one_value() -> None:
    graph = Graph.of({"x": leaf.input("x", f32["s"]) * 2.0, "z": leaf.input("z", f32["s"]) * 2.0})
    clash = refusal_of(graph, {"x": ones(2), "z": ones(3)})
    assert "s 3" in clash.message and "s is 2 by the input x" in clash.message


def test_recorded_constraints_are_checked_and_named() -> None:
    graph = Graph.of(leaf.input("x", f32["s"]) + leaf.input("z", f32["t"]))
    assert evaluate(graph, {"x": ones(3), "z": ones(3)})["y"].tolist() == [2, 2, 2]
    # NumPy alone would stretch a 1: the type said s == t.
    refused = refusal_of(graph, {"x": ones(3), "z": ones(1)})
    assert "s equals t" in refused.message and "3 and 1" in refused.message
    assert "broadcast" in refused.hint


def test_constraints_of_values_that_are_gone_hold_all_the_same() -> None:
    x = leaf.input("x", f32["s"])
    graph = Graph("g", (x,), {"y": x * 2.0}, assumed=(Constraint(symbol("s"), "multiple_of", 4, "it was split"),))
    assert evaluate(graph, {"x": ones(8)})["y"].shape == (8,)
    assert "it was split" in refusal_of(graph, {"x": ones(6)}).hint


# Sizes that depend on data --------------------------------------------------------------------------------------


def test_a_result_binds_the_symbol_of_its_size() -> None:
    n = symbol("n")
    x = leaf.input("x", i64[5])
    places = nonzero(x, count=n)
    graph = Graph.of({"places": places, "twice": ops.concat(places, places, axis=-1), "n": ops.iota(size=n)})
    found = evaluate(graph, {"x": np.array([0, 7, 0, 0, 9])})
    assert found["places"].tolist() == [[1, 4]]
    assert found["twice"].shape == (1, 4)
    assert found["n"].tolist() == [0, 1]
    assert evaluate(graph, {"x": np.zeros(5, np.int64)})["twice"].shape == (1, 0)


def test_constraints_on_such_a_symbol_are_checked_once_it_is_known() -> None:
    n = symbol("n")
    x = leaf.input("x", i64[5])
    pairs = ops.split(nonzero(x, count=n), axis=-1, parts=2)
    assert evaluate(Graph.of(pairs), {"x": np.array([1, 1, 1, 1, 0])})["y"].tolist() == [[[0, 1], [2, 3]]]
    refused = refusal_of(Graph.of(pairs), {"x": np.array([1, 1, 1, 0, 0])})
    assert "n multiple of 2" in refused.message and "3 and 2" in refused.message


def test_two_results_cannot_bind_one_symbol_to_two_sizes() -> None:
    n = symbol("n")
    a, b = leaf.input("a", i64[3]), leaf.input("b", i64[3])
    graph = Graph.of(ops.concat(nonzero(a, count=n), nonzero(b, count=n), axis=0))
    same = {"a": np.array([1, 1, 0]), "b": np.array([0, 1, 1])}
    assert evaluate(graph, same)["y"].tolist() == [[0, 1], [1, 2]]
    assert "nonzero" in refusal_of(graph, {**same, "b": np.array([0, 0, 1])}).message


def test_a_fresh_symbol_that_was_made_a_number_is_a_promise() -> None:
    x = leaf.input("x", i64[3])
    assert "2" in refusal_of(Graph.of(nonzero(x, count=2)), {"x": np.ones(3, np.int64)}).message

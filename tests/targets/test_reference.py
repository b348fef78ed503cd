"""The interpreter against numbers worked out by hand or in another way."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import ops
from dovetail.errors import BindError, DovetailError, GraphError, TypeRuleError, UnsupportedError
from dovetail.ir import leaf, origin
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bf16, bool_, c64, f16, f32, f64, i32, i64
from dovetail.ir.fact import Constraint, Facts
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.op import Op
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value, make
from dovetail.ops.indexing import gather, nonzero
from dovetail.ops.primitive import Fresh, primitive
from dovetail.targets.reference.interpreter import evaluate, evaluate_values

Array = NDArray[Any]


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def test_a_small_graph_by_hand() -> None:
    x, w = leaf.input("x", f32[2, 2]), leaf.param("w", f32[2, 1])
    graph = Graph.of({"product": x @ w, "sum": x + 1.0})
    found = evaluate(
        graph,
        {"x": np.array([[1, 2], [3, 4]], np.float32)},
        params={"w": np.array([[10], [100]], np.float32)},
    )
    assert list(found) == ["product", "sum"]
    assert found["product"].tolist() == [[210.0], [430.0]]
    assert found["sum"].tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert found["product"].dtype == np.float32


def test_parameters_of_the_graph_serve_and_those_that_are_passed_win() -> None:
    builder = Builder()
    x = builder.input("x", f32[2])
    w = builder.param("w", f32[2], np.array([1, 2], np.float32))
    builder.output("y", x * w)
    graph = builder.graph()
    feeds = {"x": np.array([3, 3], np.float32)}
    assert evaluate(graph, feeds)["y"].tolist() == [3, 6]
    assert evaluate(graph, feeds, params={"w": np.array([5, 7], np.float32)})["y"].tolist() == [15, 21]


def test_every_result_has_the_dtype_of_its_type() -> None:
    half = leaf.input("h", f16[2])
    brain = leaf.input("b", bf16[2])
    graph = Graph.of({"h": ops.sigmoid(half), "b": brain * brain, "e": ops.equal(half, half)})
    found = evaluate(graph, {"h": np.zeros(2, np.float16), "b": np.full(2, 3, ml_dtypes.bfloat16)})
    assert found["h"].dtype == np.float16 and found["h"].tolist() == [0.5, 0.5]
    assert found["b"].dtype == bf16.numpy and found["b"].astype(float).tolist() == [9.0, 9.0]
    assert found["e"].dtype == np.bool_


def test_lift_computes_without_rounding() -> None:
    x = leaf.input("x", f32[1])
    tiny = 2.0**-40
    # In f32 the small term is lost at once; in f64 it comes back.
    graph = Graph.of({"f32": (x + tiny) - 1.0, "f16": ops.cast(ops.cast(x + tiny, dtype=f16), dtype=f64) - 1.0})
    one = np.ones(1, np.float32)
    plain = evaluate(graph, {"x": one})
    lifted = evaluate(graph, {"x": one}, lift=True)
    assert plain["f32"].tolist() == [0.0] and plain["f16"].tolist() == [0.0]
    assert lifted["f32"].tolist() == [tiny] and lifted["f16"].tolist() == [tiny]
    assert lifted["f32"].dtype == np.float64


def test_lift_takes_inputs_in_either_width_and_leaves_whole_numbers_alone() -> None:
    x, i = leaf.input("x", f32[1]), leaf.input("i", i32[1])
    z = leaf.input("z", c64[1])
    graph = Graph.of({"x": x * 3.0, "i": i + 1, "z": z * z})
    feeds = {"x": np.array([1 / 3]), "i": np.array([2**31 - 1], np.int32), "z": np.array([1j], np.complex64)}
    found = evaluate(graph, feeds, lift=True)
    assert found["x"][0] == (1 / 3) * 3.0
    assert found["i"].dtype == np.int32 and found["i"][0] == -(2**31)
    assert found["z"].dtype == np.complex128 and found["z"][0] == -1
    with pytest.raises(BindError, match="float64"):
        evaluate(graph, feeds)


def test_infinities_and_nan_are_results_and_not_warnings() -> None:
    x = leaf.input("x", f32[3])
    found = evaluate(
        Graph.of({"inverse": 1.0 / x, "big": ops.exp(x * 1000.0), "half": ops.cast(x * 1e30, dtype=f16)}),
        {"x": np.array([0.0, -0.0, 1.0], np.float32)},
    )
    assert found["inverse"].tolist() == [np.inf, -np.inf, 1.0]
    assert found["big"].tolist() == [1.0, 1.0, np.inf]
    assert found["half"][2] == np.inf


def test_results_belong_to_the_caller() -> None:
    x = leaf.input("x", f32[2])
    given = ones(2)
    constant = leaf.constant(np.zeros(2, np.float32))
    found = evaluate(Graph.of({"x": x, "again": x, "c": constant}), {"x": given})
    found["x"][0] = 5
    found["c"][0] = 5
    assert given[0] == 1 and found["again"][0] == 1
    assert leaf.constant(np.zeros(2, np.float32)).attrs["value"].array[0] == 0


# Names, dtypes, shapes ------------------------------------------------------------------------------------------


def _refused(graph: Graph, feeds: Mapping[str, Any], **options: Any) -> BindError:
    with pytest.raises(BindError) as caught:
        evaluate(graph, feeds, **options)
    assert caught.value.hint
    return caught.value


@pytest.fixture
def scaled() -> Graph:
    """x[s, 4] * w[4]"""
    return Graph.of(leaf.input("x", f32["s", 4]) * leaf.param("w", f32[4]))


W = {"w": ones(4)}


def test_missing_and_unknown_names(scaled: Graph) -> None:
    assert "input x (f32[s, 4]) is missing" in _refused(scaled, {}, params=W).message
    assert "parameter w (f32[4]) is missing" in _refused(scaled, {"x": ones(2, 4)}).message
    unknown = _refused(scaled, {"x": ones(2, 4), "z": ones(1)}, params=W)
    assert "'z'" in unknown.message and "x" in unknown.hint
    assert "'v'" in _refused(scaled, {"x": ones(2, 4)}, params={**W, "v": ones(1)}).message
    assert "params" in _refused(scaled, {"x": ones(2, 4), "w": ones(4)}).hint
    assert "inputs" in _refused(scaled, {}, params={**W, "x": ones(2, 4)}).hint


def test_an_input_that_nothing_reads_is_wanted_all_the_same() -> None:
    x, z = leaf.input("x", f32[1]), leaf.input("z", f32[1])
    graph = Graph.of(x + x, inputs=(x, z))
    assert "z" in _refused(graph, {"x": ones(1)}).message


def test_wrong_dtype_rank_and_shape(scaled: Graph) -> None:
    found = _refused(scaled, {"x": np.ones((2, 4))}, params=W)
    assert "float64" in found.message and "f32[s, 4]" in found.message and "float32" in found.hint
    assert "3 axes" in _refused(scaled, {"x": ones(2, 4, 1)}, params=W).message
    assert "axis 1 is 5, not 4" in _refused(scaled, {"x": ones(2, 5)}, params=W).message
    assert "list" in _refused(scaled, {"x": [[1.0, 2.0, 3.0, 4.0]]}, params=W).message
    assert "object" in _refused(scaled, {"x": np.array([None])}, params=W).message


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
    refused = _refused(graph, {"x": rows[:1]})
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
    assert "no s makes 3*s+1 equal to 6" in _refused(graph, {"a": ones(9), "b": ones(6), "c": ones(10)}).message
    clash = _refused(graph, {"a": ones(9), "b": ones(7), "c": ones(12)})
    assert "2*s+t is 10 with s = 2, t = 6" in clash.message
    assert "no t makes" in _refused(graph, {"a": ones(9), "b": ones(7), "c": ones(11)}).message
    assert "no s makes" in _refused(Graph.of(b * 2.0), {"b": ones(0)}).message


def test_symbols_that_no_shape_tells() -> None:
    s = symbol("s")
    graph = Graph.of(leaf.input("x", TensorType(f32, (s * s,))) * 2.0)
    assert "does not tell what s is" in _refused(graph, {"x": ones(9)}).message
    assert evaluate(graph, {"x": ones(9)}, sizes={"s": 3})["y"].shape == (9,)
    assert "s*s is 16" in _refused(graph, {"x": ones(9)}, sizes={"s": 4}).message
    one = leaf.input("one", f32[1])
    unbound = _refused(Graph.of(ops.expand(one, axis=0, size=s)), {"one": ones(1)})
    assert "s" in unbound.message
    assert evaluate(Graph.of(ops.expand(one, axis=0, size=s)), {"one": ones(1)}, sizes={"s": 3})["y"].shape == (3,)


def test_one_symbol_has_one_value() -> None:
    graph = Graph.of({"x": leaf.input("x", f32["s"]) * 2.0, "z": leaf.input("z", f32["s"]) * 2.0})
    clash = _refused(graph, {"x": ones(2), "z": ones(3)})
    assert "s 3" in clash.message and "s is 2 by the input x" in clash.message


def test_recorded_constraints_are_checked_and_named() -> None:
    graph = Graph.of(leaf.input("x", f32["s"]) + leaf.input("z", f32["t"]))
    assert evaluate(graph, {"x": ones(3), "z": ones(3)})["y"].tolist() == [2, 2, 2]
    # NumPy alone would stretch a 1: the type said s == t.
    refused = _refused(graph, {"x": ones(3), "z": ones(1)})
    assert "s equals t" in refused.message and "3 and 1" in refused.message
    assert "broadcast" in refused.hint


def test_constraints_of_values_that_are_gone_hold_all_the_same() -> None:
    x = leaf.input("x", f32["s"])
    graph = Graph("g", (x,), {"y": x * 2.0}, assumed=(Constraint(symbol("s"), "multiple_of", 4, "it was split"),))
    assert evaluate(graph, {"x": ones(8)})["y"].shape == (8,)
    assert "it was split" in _refused(graph, {"x": ones(6)}).hint


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
    refused = _refused(Graph.of(pairs), {"x": np.array([1, 1, 1, 0, 0])})
    assert "n multiple of 2" in refused.message and "3 and 2" in refused.message


def test_two_results_cannot_bind_one_symbol_to_two_sizes() -> None:
    n = symbol("n")
    a, b = leaf.input("a", i64[3]), leaf.input("b", i64[3])
    graph = Graph.of(ops.concat(nonzero(a, count=n), nonzero(b, count=n), axis=0))
    same = {"a": np.array([1, 1, 0]), "b": np.array([0, 1, 1])}
    assert evaluate(graph, same)["y"].tolist() == [[0, 1], [1, 2]]
    assert "nonzero" in _refused(graph, {**same, "b": np.array([0, 0, 1])}).message


def test_a_fresh_symbol_that_was_made_a_number_is_a_promise() -> None:
    x = leaf.input("x", i64[3])
    assert "2" in _refused(Graph.of(nonzero(x, count=2)), {"x": np.ones(3, np.int64)}).message


# Ops ------------------------------------------------------------------------------------------------------------


class _Doubled(Op):
    """A declared op in its smallest form."""

    name = "doubled"
    spelled = 0

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        return operands[0]

    def expansion(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Value:
        self.spelled += 1
        (x,) = operands
        return x * attrs["by"]


class _Nameless(_Doubled):
    name = "nameless"

    def expansion(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Value:
        return None  # type: ignore[return-value]


def test_a_declared_op_runs_as_what_it_spells_out_once_for_equal_calls() -> None:
    doubled = _Doubled()
    value = leaf.input("x", f32["s"])
    for by in (2.0, 2.0, 2.0, 3.0):
        value = make(doubled, (value,), {"by": by})
    assert evaluate(Graph.of(value), {"x": ones(2)})["y"].tolist() == [24.0, 24.0]
    assert doubled.spelled == 2


def test_a_declared_op_inside_a_declared_op() -> None:
    inner = _Doubled()

    class Outer(_Doubled):
        name = "outer"

        def expansion(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Value:
            (x,) = operands
            return leaf.pack((make(inner, (x,), attrs), x + 1.0))[0] + make(inner, (x,), attrs)

    value = make(Outer(), (leaf.input("x", f32[1]),), {"by": 5.0})
    assert evaluate(Graph.of(value), {"x": ones(1)})["y"].tolist() == [10.0]


def test_an_op_without_any_meaning_is_unsupported() -> None:
    value = make(_Nameless(), (leaf.input("x", f32[1]),), {"by": 5.0})
    with pytest.raises(UnsupportedError, match="nameless"):
        evaluate(Graph.of(value), {"x": ones(1)})


def test_several_results() -> None:
    x = leaf.input("x", f32[3])
    packed = leaf.pack((x * 2.0, x * 3.0))
    both = make(leaf.ITEM, (packed,), {"index": 1})
    assert evaluate(Graph.of(both), {"x": ones(3)})["y"].tolist() == [3, 3, 3]
    with pytest.raises(GraphError, match="several results"):
        evaluate(Graph.of(packed), {"x": ones(3)})


def _one_more(facts: Facts, x: Type, *, count: object) -> Type:
    assert isinstance(x, TensorType)
    return TensorType(x.dtype, (x.shape[0] + 1,))


@primitive(_one_more)
def liar(x: Array, *, count: Fresh = 0) -> Array:
    """Says one more element than it gives."""
    return x


def test_a_shape_that_the_type_did_not_declare_is_an_error() -> None:
    refused = _refused(Graph.of(liar(leaf.input("x", f32["s"]))), {"x": ones(3)})
    assert "the result of liar" in refused.message and "s+1" in refused.message


def test_errors_name_the_place_that_the_author_knows() -> None:
    builder = Builder()
    with builder.recording(), origin.scope("encoder"), origin.scope("lookup"):
        x, i = builder.input("x", f32[4]), builder.input("i", i64[2])
        builder.output("y", gather(x, i, axis=0))
    refused = _refused(builder.graph(), {"x": ones(4), "i": np.array([0, 9])})
    assert refused.where == "encoder.lookup" and "9" in refused.message


def test_an_error_from_inside_numpy_is_ours() -> None:
    def rule(facts: Facts, x: Type) -> Type:
        return x

    @primitive(rule)
    def broken(x: Array) -> Array:
        """Cannot be computed."""
        raise ValueError("no such thing")

    assert "no such thing" in _refused(Graph.of(broken(leaf.input("x", f32[1]))), {"x": ones(1)}).message


# Walking --------------------------------------------------------------------------------------------------------


def test_evaluate_values_cuts_at_what_it_is_given() -> None:
    x, z = leaf.input("x", f32["s"]), leaf.input("z", f32["s"])
    inner = ops.log(x)
    outer = inner * z
    found = evaluate_values([outer, inner], {inner: np.full(2, 7, np.float32), z: ones(2)})
    assert [a.tolist() for a in found] == [[7, 7], [7, 7]]
    with pytest.raises(BindError, match=r"input x .* is missing"):
        evaluate_values([outer], {z: ones(2)})
    with pytest.raises(BindError, match="float64"):
        evaluate_values([outer], {inner: np.ones(2), z: ones(2)})


def test_a_long_chain_does_not_recurse() -> None:
    x = leaf.input("x", f32[1])
    value = x
    for _ in range(20_000):
        value = value + x
    assert evaluate(Graph.of(value), {"x": ones(1)})["y"].tolist() == [20_001.0]


def test_what_is_no_longer_read_is_freed() -> None:
    alive: list[weakref.ref[Array]] = []
    peak = 0

    def rule(facts: Facts, x: Type) -> Type:
        return x

    @primitive(rule)
    def watched(x: Array) -> Array:
        """x + 1, counting which earlier results are still held."""
        nonlocal peak
        result = x + 1
        alive.append(weakref.ref(result))
        peak = max(peak, sum(ref() is not None for ref in alive))
        return result

    value = leaf.input("x", f32[4])
    for _ in range(50):
        value = watched(value)
    gc.collect()
    assert evaluate(Graph.of(value), {"x": ones(4)})["y"].tolist() == [51] * 4
    assert peak <= 3


def test_patterns_cannot_be_run() -> None:
    with pytest.raises(DovetailError):
        evaluate(Graph.of(leaf.hole("x") + leaf.hole("z")), {})


def test_bool_and_scalars() -> None:
    flag = leaf.input("flag", TensorType(bool_, ()))
    found = evaluate(Graph.of(ops.where(flag, leaf.constant(1.5, f32), 2.5)), {"flag": np.array(True)})
    assert found["y"].shape == () and found["y"] == 1.5
    with pytest.raises(TypeRuleError):
        ops.where(leaf.constant(1.5, f32), flag, flag)


def test_sizes_that_the_run_finds_are_waited_for() -> None:
    x, found = leaf.input("x", f32["r", 3]), symbol("found")
    early = ops.iota(size=found) * 2
    places = ops.nonzero(x, count=found)
    more = ops.counting(ops.extent(size=found) + 1, count=symbol("more"))
    graph = Graph.of({"early": early, "late": ops.iota(size=symbol("more")), "places": places, "more": more})
    for rows, many in (([[0, 5, 0], [7, 0, 1]], 3), ([[0, 0, 0]], 0)):
        results = evaluate(graph, {"x": np.array(rows, np.float32)})
        assert results["early"].tolist() == list(range(0, 2 * many, 2))
        assert results["late"].tolist() == results["more"].tolist() == list(range(many + 1))
        assert results["places"].shape == (2, many)

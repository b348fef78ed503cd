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
from dovetail.ir.fact import Facts
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Op, Value, make
from dovetail.ops.indexing import gather
from dovetail.ops.primitive import Fresh, primitive
from dovetail.targets.reference.interpreter import evaluate, evaluate_values
from tests.targets.judged import ones, refusal_of

Array = NDArray[Any]


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
    refused = refusal_of(Graph.of(liar(leaf.input("x", f32["s"]))), {"x": ones(3)})
    assert "the result of liar" in refused.message and "s+1" in refused.message


def test_errors_name_the_place_that_the_author_knows() -> None:
    builder = Builder()
    with builder.recording(), origin.scope("encoder"), origin.scope("lookup"):
        x, i = builder.input("x", f32[4]), builder.input("i", i64[2])
        builder.output("y", gather(x, i, axis=0))
    refused = refusal_of(builder.graph(), {"x": ones(4), "i": np.array([0, 9])})
    assert refused.where == "encoder.lookup" and "9" in refused.message


def test_an_error_from_inside_numpy_is_ours() -> None:
    def rule(facts: Facts, x: Type) -> Type:
        return x

    @primitive(rule)
    def broken(x: Array) -> Array:
        """Cannot be computed."""
        raise ValueError("no such thing")

    assert "no such thing" in refusal_of(Graph.of(broken(leaf.input("x", f32[1]))), {"x": ones(1)}).message


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


@pytest.mark.heavy
def test_a_long_chain_does_not_recurse() -> None:
    x = leaf.input("x", f32[1])
    value = x
    for _ in range(20_000):
        value = value + x
    assert evaluate(Graph.of(value), {"x": ones(1)})["y"].tolist() == [20_001.0]


@pytest.mark.slow
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

"""The verifier against values that no builder would make: each rule broken alone, and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from dovetail import library, ops
from dovetail.derive.fuse import fuse
from dovetail.errors import DovetailError, VerifyError
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Symbol, symbol
from dovetail.ir.dtype import DType, bool_, f32, i64
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.origin import Origin
from dovetail.ir.type import TensorType, TupleType
from dovetail.ir.value import Op, Value, make
from dovetail.ir.verify import verify
from tests import strategies
from tests.ir.graphs import anything, kitchen_sink, nested

X, Y = leaf.input("x", f32[2, 3]), leaf.input("y", f32[3, "n"])


def broken(
    op: Op, operands: Any = (), attrs: Mapping[str, Any] | None = None, type: Any = f32[2], facts: Any = ()
) -> Value:
    """A value that was not made by `make`."""
    return Value(op, operands, MappingProxyType(dict(attrs or {})), type, facts)


def refused(graph: Graph) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    assert caught.value.hint
    assert isinstance(caught.value, DovetailError)
    return caught.value


def of(value: Value, **others: Any) -> Graph:
    """A graph around a value that may be too broken to be walked."""
    return Graph("g", (X, Y), {"y": value}, {value: (Origin("module", "layers.7"),)}, **others)


def test_good_graphs_pass() -> None:
    verify(nested())
    verify(Graph.of(kitchen_sink()))
    verify(Graph.of(ops.matmul(X, Y)))


@pytest.mark.slow
@given(strategies.graphs(symbolic=True))
def test_random_graphs_pass_before_and_after_fusing(drawn: tuple[Graph, Any]) -> None:
    verify(drawn[0])
    verify(fuse(drawn[0], library.ALL).graph)


def test_the_error_names_node_operands_and_origin() -> None:
    good = ops.matmul(X, Y)
    bad = broken(ops.matmul, (X, good), type=f32[9])
    error = refused(of(bad))
    assert error.where == "%1 = matmul(x: f32[2, 3], %0: f32[2, n]), from layers.7"
    assert error.exit_code == 3


def test_a_type_that_the_rule_does_not_give() -> None:
    error = refused(of(broken(ops.relu, (X,), type=f32[3, 2])))
    assert error.message == "the type is stored as f32[3, 2], and the rule gives f32[2, 3]"
    assert "%0 = relu(x: f32[2, 3]), from layers.7" in error.where


def test_operands_that_the_rule_does_not_take() -> None:
    error = refused(of(broken(ops.add, (X, leaf.constant(1, i64)), type=f32[2, 3])))
    assert "add of f32 and i64" in error.message
    assert "cast" in error.hint
    assert "relu of 2 operands" in refused(of(broken(ops.relu, (X, X), type=f32[2, 3]))).message


def test_constraints_that_the_rule_does_not_give() -> None:
    n, m = leaf.input("n", f32["n"]), leaf.input("m", f32["m"])
    good = n + m
    bad = broken(ops.add, (n, m), type=good.type)
    error = refused(Graph("g", (n, m), {"y": bad}))
    assert error.message == "the constraints are stored as none, and the rule gives n equals m"


def test_a_rule_that_fails_from_within() -> None:
    class Careless(Op):
        name = "careless"

        def infer(self, facts: Any, operands: Any, attrs: Any) -> Any:
            return attrs["missing"]

    assert "careless does not take this: 'missing'" in refused(of(broken(Careless()))).message


@pytest.mark.parametrize("operand", [None, 3, "x", object()])
def test_operands_that_are_no_values(operand: Any) -> None:
    assert "operand 1 is" in refused(of(broken(ops.add, (X, operand)))).message


def test_operands_that_are_no_tuple_and_ops_that_are_none() -> None:
    assert "the operands are a list" in refused(of(broken(ops.add, [X, X]))).message
    pairs: Any = (("a", 1),)
    assert "the attributes are a tuple" in refused(of(Value(anything, (), pairs, f32[2], ()))).message
    nothing: Any = "add"
    assert "whose op is 'add'" in refused(of(broken(nothing, (X, X)))).message


def test_a_value_that_depends_on_itself() -> None:
    first = broken(ops.relu, (X,), type=f32[2, 3])
    second = broken(ops.relu, (first,), type=f32[2, 3])
    first.operands = (second,)
    assert "depends on itself" in refused(of(second)).message
    first.operands = ()


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        (object(), "of the kind object"),
        (np.int64(3), "of the kind int64"),
        ({1}, "of the kind set"),
        ([1], "of the kind list"),
        ((1, [2]), "of the kind list"),
        (1j, "of the kind complex"),
        (leaf.Hole("k"), "of the kind Hole"),
        (2**200, "beyond 127 bits"),
        (tuple(range(5000)), "a tuple of 5000 items"),
        (TensorType(f32, (-1,)), "a size is -1"),
        (DType("f31", np.dtype(np.float32), "float", 31), "the dtype f31"),
        (Dim((((Symbol("a b"),), 1),)), "'a b' is not a name"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_attributes_of_unknown_kinds(attribute: Any, found: str) -> None:
    error = refused(of(broken(anything, (X,), {"a": attribute}, TensorType(f32, ()))))
    assert error.message.startswith("the attribute 'a': ")
    assert found in error.message


def test_deep_tuples_and_attributes_without_a_name() -> None:
    deep: Any = ()
    for _ in range(100):
        deep = (deep,)
    assert "inside each other" in refused(of(broken(anything, (), {"a": deep}, TensorType(f32, ())))).message
    assert "an attribute is named ''" in refused(of(broken(anything, (), {"": 1}, TensorType(f32, ())))).message


@pytest.mark.parametrize(
    "attrs",
    [{"axes": (1,)}, {"axes": (-1, -2)}, {"axes": [-1]}, {"axes": (True,)}, {}],
    ids=str,
)
def test_attributes_that_are_not_in_normal_form(attrs: dict[str, Any]) -> None:
    error = refused(of(broken(ops.flip, (X,), attrs, type=X.type)))
    assert "flip" in error.where


def test_attributes_in_another_order_are_another_value() -> None:
    good = ops.part(X, axis=-1, index=0, parts=3)
    turned = {name: good.attrs[name] for name in reversed(list(good.attrs))}
    assert "not in normal form" in refused(of(make(ops.part, (X,), turned))).message


def test_patterns_have_no_place_in_a_graph() -> None:
    assert "a hole of a pattern" in refused(Graph.of(leaf.hole("x"))).message
    assert "of a pattern" in refused(Graph.of(ops.relu(leaf.hole("x")))).message
    assert "of a pattern" in refused(Graph.of(X + ops.neg(leaf.scalar(leaf.Hole("k"), None)))).message
    assert "without a type" in refused(of(broken(ops.relu, (X,), type=None))).message


@pytest.mark.parametrize(
    ("type", "found"),
    [
        (TensorType(f32, (-3,)), "a size is -3"),
        (TensorType(f32, (True, 3)), "a size is True"),
        (TensorType(f32, (2.0, 3)), "a size is 2.0"),  # pyright: ignore[reportArgumentType]
        (TensorType(f32, [2, 3]), "the type is"),  # pyright: ignore[reportArgumentType]
        (TensorType(f32, (2**64,)), "63 bits"),
        (TensorType(f32, (1,) * 65), "rank 65"),
        (TensorType(DType("f32", np.dtype(np.float32), "float", 32), (2, 3)), "the dtype f32"),
        (TensorType(f32, (Dim((((Symbol("2s"),), 1),)),)), "'2s' is not a name"),
        (TupleType((f32[2], TupleType(()))), "the type is"),  # pyright: ignore[reportArgumentType]
        (3, "the type is 3"),
    ],
    ids=str,
)
def test_types_that_are_not_well_formed(type: Any, found: str) -> None:
    assert found in refused(of(broken(anything, (X,), {}, type))).message
    kept = leaf.PARAM
    assert refused(Graph("g", (), {"y": broken(kept, (), {"name": "w", "type": type}, type)}))


def test_names_are_given_once() -> None:
    other = leaf.input("x", f32[7])
    found = refused(Graph("g", (X, other), {"y": X})).message
    assert found == "'x' is input f32[2, 3] and input f32[7] at once"
    clash = leaf.param("x", f32[2, 3])
    assert refused(Graph("g", (X,), {"y": X + clash})).message == "'x' is input f32[2, 3] and param f32[2, 3] at once"
    twice = leaf.param("w", f32[2, 3]) + leaf.param("w", f32[3])
    assert "param f32[2, 3] and param f32[3]" in refused(Graph.of(twice)).message
    assert "listed twice" in refused(Graph("g", (X, X), {"y": X})).message


def test_inputs_are_inputs_and_are_listed() -> None:
    assert "input 0 is <w: f32[2]>" in refused(Graph("g", (leaf.param("w", f32[2]),), {"y": X})).message
    nothing: Any = None
    assert "input 1 is None" in refused(Graph("g", (X, nothing), {"y": X})).message
    assert "is not among the inputs" in refused(Graph("g", (), {"y": X})).message
    unused = broken(leaf.INPUT, (), {"name": "u", "type": f32[2]}, f32[3])
    assert "stored as f32[3]" in refused(Graph("g", (X, unused), {"y": X})).message


@pytest.mark.parametrize("name", ["", 3, None])
def test_outputs_are_named_values(name: Any) -> None:
    assert "an output is named" in refused(Graph("g", (X,), {name: X})).message


def test_outputs_are_there() -> None:
    nothing: Any = 3
    assert "has no outputs" in refused(Graph("g", (X,), {})).message
    assert "the output 'y' is 3" in refused(Graph("g", (X,), {"y": nothing})).message


def test_items_are_in_range() -> None:
    several = ops.top_k(X, axis=-1, k=2, largest=True)
    for index in (2, -1, True, "0"):
        assert "item" in refused(of(broken(leaf.ITEM, (several,), {"index": index}))).message
    assert "one tensor" in refused(of(broken(leaf.ITEM, (X,), {"index": 0}))).message


def inside(result: Value, arguments: tuple[TensorType, ...] = (f32[2],)) -> Graph:
    return of(make(anything, (X,), {"body": Subgraph(arguments, (result,))}))


def test_arguments_stand_inside_sub_graphs_only() -> None:
    assert "outside of a sub-graph" in refused(Graph.of(ops.relu(leaf.argument(0, f32[2])))).message


def test_arguments_are_those_that_are_declared() -> None:
    verify(inside(ops.relu(leaf.argument(0, f32[2]))))
    error = refused(inside(ops.relu(leaf.argument(1, f32[2]))))
    assert error.message == "argument 1 of 1"
    found = refused(inside(ops.relu(leaf.argument(0, f32[3])))).message
    assert found == "argument 0 is read as f32[3] and declared as f32[2]"
    assert "argument -1 of 1" in refused(inside(leaf.argument(-1, f32[2]))).message


def test_sub_graphs_are_closed() -> None:
    assert "reads <x: f32[2, 3]> of the graph" in refused(inside(ops.relu(X))).message
    assert "of the graph" in refused(inside(leaf.param("w", f32[2]))).message


def test_broken_values_are_found_inside_nested_sub_graphs() -> None:
    bad = broken(ops.relu, (leaf.argument(0, f32[2]),), type=f32[9])
    inner = make(anything, (leaf.argument(0, f32[2]),), {"bodies": (1, Subgraph((f32[2],), (bad,)))})
    assert "stored as f32[9]" in refused(inside(inner)).message
    assert "of a pattern" in refused(inside(make(anything, (), {"body": Subgraph((), (leaf.hole("x"),))}))).message


def test_sub_graphs_that_are_made_of_something_else() -> None:
    wrong: Any = [leaf.argument(0, f32[2])]
    body = Subgraph((f32[2],), wrong)
    assert "no tuples" in refused(of(broken(anything, (), {"body": body}, TensorType(f32, ())))).message
    body = Subgraph((f32[2],), (3,))  # pyright: ignore[reportArgumentType]
    assert "result 0 of a sub-graph is 3" in refused(of(make(anything, (), {"body": body}))).message
    body = Subgraph((TupleType(()),), ())  # pyright: ignore[reportArgumentType]
    assert "argument 0 of a sub-graph" in refused(of(make(anything, (), {"body": body}))).message


def test_sub_graphs_nest_to_a_limit() -> None:
    value = make(anything, ())
    for _ in range(40):
        value = make(anything, (), {"body": Subgraph((), (value,))})
    assert "sub-graphs inside each other" in refused(of(value)).message


def test_equal_values_are_the_same_object() -> None:
    good = ops.relu(X)
    twin = broken(ops.relu, (X,), type=good.type)
    assert "not the same object" in refused(of(twin)).message


def test_what_stands_beside_the_values() -> None:
    wrong: Any = {X: ("layers.0",)}
    assert "the origins of" in refused(Graph("g", (X,), {"y": X}, wrong)).message
    nothing: Any = ("s >= 2",)
    assert "an assumption is 's >= 2'" in refused(of(ops.relu(X), assumed=nothing)).message
    bad = Constraint(Dim((((Symbol("?"),), 1),)), "equals", 3, "")
    assert "'?' is not a name" in refused(of(ops.relu(X), assumed=(bad,))).message


def test_arrays_fit_their_parameters() -> None:
    w = leaf.param("w", f32["n", 3])
    graph = Graph.of(w)
    verify(replace(graph, params={"w": np.zeros((5, 3), np.float32), "other": np.zeros(1)}))
    arrays: list[Any] = [np.zeros((5, 4), np.float32), np.zeros((5, 3)), np.zeros(3, np.float32), [1.0]]
    for array in arrays:
        assert "the array of 'w' is" in refused(replace(graph, params={"w": array})).message


def test_a_flag_that_is_not_one_is_refused_by_the_rule_of_its_op() -> None:
    body = Subgraph((), (leaf.constant(1.0, f32),))
    good = ops.if_(leaf.input("flag", TensorType(bool_, ())), then=body, otherwise=body)
    verify(Graph.of(good[0]))
    bad = broken(good.op, (X,), good.attrs, good.type)
    assert "predicate" in refused(of(bad)).message


def test_symbols_are_compared_by_algebra() -> None:
    n = symbol("n")
    x = leaf.input("x", TensorType(f32, (2 * n,)))
    half = ops.part(x, axis=-1, index=0, parts=2)
    assert half.type == TensorType(f32, (n,))
    verify(Graph.of(half))


def test_a_value_that_nearly_looks_like_one_that_was_checked() -> None:
    """What was checked is remembered by op, exact attributes and types; a float is no whole number."""
    good = ops.reduce_sum(X, axes=(-1,))
    bad = broken(ops.reduce_sum, (X,), {**good.attrs, "axes": (-1.0,)}, good.known_type)
    assert "same object" not in refused(Graph("g", (X, Y), {"good": good, "bad": bad})).message
    body = Subgraph([], [])  # pyright: ignore[reportArgumentType]
    assert "no tuples" in refused(of(broken(anything, (X,), {"body": body}, TensorType(f32, ())))).message

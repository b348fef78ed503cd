"""Symbols become numbers, and whatever does not fit is refused with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from dovetail import Builder, Graph, Value, ops
from dovetail.dtypes import f32, i32
from dovetail.errors import BindError
from dovetail.ir import leaf, origin
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Subgraph
from dovetail.library.linear import linear
from dovetail.passes.regions import mark_regions
from dovetail.passes.specialize import specialize, symbols_of
from dovetail.targets.reference.interpreter import evaluate
from tests.strategies import binding_of, graphs
from tests.tolerances import assert_close

X = leaf.input("x", f32["b", "s", 4])
W = leaf.param("w", f32[4, "n"])
S, N = symbol("s"), symbol("n")


def test_types_of_everything() -> None:
    graph = Graph.of({"y": linear(X, W, act="gelu"), "x": X})
    special = specialize(graph, {"b": 2, "s": 3, "n": 5})
    assert special.symbols == () and special.constraints == ()
    assert {k: v.type for k, v in special.outputs.items()} == {"y": f32[2, 3, 5], "x": f32[2, 3, 4]}
    assert special.inputs == (leaf.input("x", f32[2, 3, 4]),)
    assert special.outputs["y"] is linear(*special.outputs["y"].operands, act="gelu")
    assert list(special.outputs) == ["y", "x"] and special.name == graph.name


def test_sizes_in_attributes() -> None:
    row = leaf.param("row", f32[1, 1, 4])
    y = ops.expand(ops.expand(row, axis=1, size=S), axis=0, size=2 * S)
    y = ops.slice_(ops.pad(y, 0.0, axis=1, before=S), axis=1, start=S - 1, stop=2 * S)
    special = specialize(Graph.of(y), {"s": 3})
    found = special.outputs["y"]
    assert found.type == f32[6, 4, 4]
    assert (found.attrs["start"], found.attrs["stop"], found.operands[0].attrs["before"]) == (2, 6, 3)


def test_sizes_inside_sub_graphs() -> None:
    given_types = (f32["b", "s", 4],)
    inner = leaf.argument(0, given_types[0])
    nested = ops.if_(
        leaf.constant(np.array(True)),
        inner,
        then=Subgraph(given_types, (ops.slice_(inner, axis=1, start=0, stop=S // 2),)),
        otherwise=Subgraph(given_types, (ops.slice_(inner, axis=1, start=0, stop=S // 2) * 2.0,)),
    )[0]
    body = Subgraph(given_types, (nested,))
    chosen = ops.if_(leaf.constant(np.array(True)), X, then=body, otherwise=body)
    special = specialize(Graph.of(chosen[0]), {"b": 2, "s": 6})
    assert special.outputs["y"].type == f32[2, 3, 4]
    then: Subgraph = special.outputs["y"].operands[0].attrs["then"]
    assert then.arguments == (f32[2, 6, 4],) and then.result_types == (f32[2, 3, 4],)
    deeper: Subgraph = then.results[0].operands[0].attrs["then"]
    assert deeper.results[0].attrs["stop"] == 3
    x = np.arange(48, dtype=np.float32).reshape(2, 6, 4)
    np.testing.assert_array_equal(evaluate(special, {"x": x})["y"], x[:, :3])


def test_regions_are_specialised() -> None:
    graph = mark_regions(Graph.of(ops.tanh(X * 2.0) + X)).graph
    special = specialize(graph, {"b": 1, "s": 2})
    (region,) = [v for v in special.values if v.op.name == "region"]
    assert region.type == f32[1, 2, 4] and region.attrs["body"].arguments == (f32[1, 2, 4],)


@pytest.mark.slow
@given(graphs(symbolic=True))
def test_random_graphs_mean_the_same(drawn: tuple[Graph, dict[str, NDArray[Any]]]) -> None:
    graph, feeds = drawn
    special = specialize(graph, binding_of(graph, feeds))
    assert special.symbols == () and special.constraints == ()
    found, expected = evaluate(special, feeds), evaluate(graph, feeds, lift=True)
    for name, value in special.outputs.items():
        assert_close(found[name], expected[name], value.dtype)


CONTRACTED = Graph.of(X @ leaf.param("w", f32["k", 2]), name="product")
SLICED = Graph.of(ops.slice_(X, axis=1, start=2, stop=5), name="cut")
BROADCAST = Graph.of(X + leaf.param("bias", f32[7, 4]), name="sum")
SPLIT = Graph.of(ops.split(X, axis=1, parts=3), name="heads")
SHRUNK = Graph.of(leaf.input("x", f32[S - 3]), name="shrunk")
DIVIDED = Graph.of(leaf.input("x", f32[12 // (S - 3)]), name="divided")
SAME = Graph.of(ops.concat(X, leaf.input("y", f32["b", "t", "n"]), axis=1), name="joined")


@pytest.mark.parametrize(
    ("graph", "binding", "message"),
    [
        # Trap: a contracted size bound to another number than its partner.
        (CONTRACTED, {"b": 1, "s": 1, "k": 5}, "k equals 4 does not hold: found 5 and 4|4 equals k"),
        # Trap: a slice that is cut short instead of refused.
        (SLICED, {"b": 1, "s": 4}, "s at least 5 does not hold: found 4 and 5"),
        # Trap: a number met a symbol in a broadcast and nothing was recorded.
        (BROADCAST, {"b": 1, "s": 6}, "s equals 7 does not hold: found 6 and 7"),
        (SPLIT, {"b": 1, "s": 4}, "s multiple of 3 does not hold: found 4 and 3"),
        (SAME, {"b": 1, "s": 1, "t": 1, "n": 9}, "n equals 4|4 equals n"),
        (SHRUNK, {"s": 1}, "gets a negative size with s = 1"),
        (DIVIDED, {"s": 3}, "divided by zero"),
        (X_ := Graph.of(X, name="x"), {"b": 1}, "x has no number for s"),
        (X_, {}, "x has no number for b, s"),
        (X_, {"b": 1, "s": 1, "seq": 2}, "x has no symbol 'seq'"),
        (X_, {"b": 1, "s": -1}, "the symbol s is bound to -1"),
        (X_, {"b": 1, "s": 1.5}, "the symbol s is bound to 1.5"),
        (X_, {"b": 1, "s": True}, "the symbol s is bound to True"),
        (X_, {"b": 1, "s": "2"}, "the symbol s is bound to '2'"),
        (Graph.of(leaf.input("x", f32[2])), {"s": 1}, "graph has no symbol 's'"),
    ],
)
def test_refused(graph: Graph, binding: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message) as caught:
        specialize(graph, binding)
    assert caught.value.hint


def test_hints() -> None:
    def hint(graph: Graph, binding: dict[str, int]) -> str:
        with pytest.raises(BindError) as caught:
            specialize(graph, binding)
        return caught.value.hint

    assert hint(Graph.of(leaf.input("x", f32["seq"])), {"seg": 2}) == "did you mean seq?"
    assert hint(Graph.of(leaf.input("x", f32["seq"])), {"zzz": 2}) == "its symbols are seq"
    assert "slice" in hint(SLICED, {"b": 1, "s": 4})


def test_symbols_of_inputs_that_nobody_reads_and_of_attributes() -> None:
    unread = leaf.input("unread", f32["u"])
    window = ops.slice_(leaf.param("table", f32[9]), axis=0, start=symbol("at"), stop=symbol("at") + 2)
    graph = Graph.of(window, inputs=(unread,))
    assert symbols_of(graph) == ({"u", "at"}, set())
    special = specialize(graph, {"u": 3, "at": 4})
    assert special.inputs == (leaf.input("unread", f32[3]),) and special.outputs["y"].attrs["start"] == 4
    with pytest.raises(BindError, match="9 at least at"):
        specialize(graph, {"u": 3, "at": 8})


def test_sizes_that_depend_on_data_stay() -> None:
    places = ops.nonzero(leaf.input("x", i32["s"]), count=symbol("found"))
    graph = Graph.of(places * 2)
    assert symbols_of(graph) == ({"s"}, {"found"})
    special = specialize(graph, {"s": 4})
    assert special.symbols == ("found",)
    fixed = specialize(graph, {"s": 4, "found": 2})
    assert fixed.symbols == () and evaluate(fixed, {"x": np.array([0, 1, 0, 1], np.int32)})["y"].tolist() == [[2, 6]]


def test_a_branch_that_does_not_fit_refuses_to_run() -> None:
    flag, x = leaf.input("flag", bool_[()]), leaf.input("x", f32["s", "t"])
    (y,) = ops.cond(
        flag, lambda x: ops.squeeze(x, axes=(0,)), lambda x: ops.squeeze(x, axes=(1,)), x, sizes=[symbol("k")]
    )
    graph = Graph.of(y)
    assert symbols_of(graph) == ({"s", "t"}, {"k"})
    rows = specialize(graph, {"s": 1, "t": 4})
    array = np.ones((1, 4), np.float32)
    assert evaluate(rows, {"flag": np.array(True), "x": array})["y"].shape == (4,)
    with pytest.raises(BindError, match="found 4 and 1"):
        evaluate(rows, {"flag": np.array(False), "x": array})
    with pytest.raises(BindError, match="squeeze"):
        specialize(graph, {"s": 3, "t": 4})
    both = specialize(graph, {"s": 1, "t": 1})
    assert evaluate(both, {"flag": np.array(False), "x": array[:, :1]})["y"].shape == (1,)


def test_some_symbols_only() -> None:
    graph = Graph.of(ops.slice_(X @ W, axis=1, start=2, stop=5))
    special = specialize(graph, {"b": 2}, partial=True)
    assert special.symbols == ("n", "s") and special.outputs["y"].type == f32[2, 3, N]
    assert [str(c) for c in special.constraints] == ["s at_least 5"]
    with pytest.raises(BindError, match="s at least 5"):
        specialize(special, {"s": 4, "n": 1})
    assert specialize(special, {"s": 5, "n": 1}).outputs["y"].type == f32[2, 3, 1]


def test_promises_of_earlier_passes_are_checked() -> None:
    graph = replace(Graph.of(X), assumed=(Constraint(S, "at_least", 5, "a slice that was folded away"),))
    with pytest.raises(BindError, match="s at least 5") as caught:
        specialize(graph, {"b": 1, "s": 4})
    assert "a slice that was folded away" in caught.value.hint
    assert specialize(graph, {"b": 1, "s": 5}).assumed == ()
    with pytest.raises(BindError, match="s at least 5"):
        specialize(specialize(graph, {"b": 1}, partial=True), {"s": 4})


def test_zero_is_a_size() -> None:
    special = specialize(Graph.of(X @ W), {"b": 0, "s": 3, "n": 0})
    assert special.outputs["y"].type == f32[0, 3, 0]


def test_nothing_to_do_gives_the_same_values() -> None:
    value = leaf.input("x", f32[2]) * 2.0
    assert specialize(Graph.of(value), {}).outputs["y"] is value


def test_origins_and_parameters_are_kept() -> None:
    builder = Builder(lines=False)
    argument: Value
    with builder.recording():
        x = builder.input("x", f32["s"])
        with origin.scope("inner"):
            argument = leaf.argument(0, f32["s"])
            twice = argument * 2.0
        with origin.scope("outer"):
            body = Subgraph((f32["s"],), (twice,))
            builder.output("y", ops.if_(leaf.constant(np.array(True)), x, then=body, otherwise=body)[0])
        builder.param("w", f32[1], np.ones(1, np.float32))
    graph = builder.graph()
    special = specialize(graph, {"s": 4})
    chosen = special.outputs["y"].operands[0]
    assert special.where(chosen) == "outer"
    then: Subgraph = chosen.attrs["then"]
    assert special.where(then.results[0]) == "inner"
    assert special.params is graph.params


def test_where_a_mistake_is() -> None:
    def told(stop: int, size: int) -> str:
        builder = Builder(lines=False)
        with builder.recording():
            with origin.scope("input"):
                x = builder.input("x", f32[12 // (S - 3)])
            with origin.scope("layer.3"):
                builder.output("y", ops.slice_(x, axis=0, start=0, stop=stop) if stop else x)
        with pytest.raises(BindError) as caught:
            specialize(builder.graph(), {"s": size})
        return caught.value.where

    assert told(stop=0, size=3) == "input"
    assert told(stop=3, size=12) == "layer.3"

"""Symbols are bound from the inputs and parameters as declared, whichever of them the optimised graph still reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

import dovetail
from dovetail import Builder, Graph, Program, ops
from dovetail.dtypes import bool_, f32, i64
from dovetail.errors import BindError
from dovetail.ir import leaf
from dovetail.ir.dim import evaluate, symbol
from dovetail.ir.rewrite import rebuild
from dovetail.ir.text import parse_graph, print_graph
from dovetail.ir.value import Value
from dovetail.ir.verify import verify
from dovetail.library import ALL
from dovetail.ops import ALL as PRIMITIVES
from tests import strategies

Array = NDArray[Any]
B = symbol("b")
TRUE = np.array([True])


def spread(x: Value) -> Value:
    return ops.expand(x, axis=0, size=B)


def chosen(x: Value, w: Value) -> Value:
    return ops.where(dovetail.graphs.constant(TRUE), x, w)


def cut_from_joined(x: Value, w: Value) -> Value:
    return ops.slice_(ops.concat(spread(x), w, axis=0), axis=0, start=0, stop=B)


def counted(x: Value, w: Value) -> Value:
    return x + ops.cast(ops.extent(size=B), dtype=f32)


def false_and(x: Value, w: Value) -> Value:
    never = ops.bit_and(ops.less(w, 0.0), dovetail.graphs.constant(np.array([False])))
    return ops.where(never, w, x)


def branch(x: Value, w: Value) -> Value:
    return ops.where(dovetail.graphs.constant(~TRUE), ops.sqrt(w) + x, spread(x) * 2.0)


def never_read(x: Value, w: Value) -> Value:
    return spread(x) * 3.0


DROPS: dict[str, Callable[[Value, Value], Value]] = {
    made.__name__: made for made in (chosen, cut_from_joined, counted, false_and, branch, never_read)
}
WANTED: dict[str, Callable[[Array, int], Array]] = {
    "counted": lambda x, b: x + np.float32(b),
    "branch": lambda x, b: np.repeat(x * 2, b),
    "never_read": lambda x, b: np.repeat(x * 3, b),
}


def dropping(name: str, *, came: Array | None = None, donated: bool = False) -> Graph:
    """A graph whose outputs do not depend on the numbers of w; the shape of w alone binds b."""
    builder = Builder(name)
    x = builder.input("x", f32[1])
    w = builder.param("w", f32["b"], came)
    builder.output("y", DROPS[name](x, w))
    if donated:
        state = builder.input("state", f32[4])
        builder.output("next", state + x, into="state")
    return builder.graph()


def weights(b: int) -> Array:
    return np.full(b, 7, np.float32)


def came(name: str, b: int, folder: Path) -> Program:
    return dovetail.compile(dropping(name, came=weights(b)), cache="off")


def given_to_compile(name: str, b: int, folder: Path) -> Program:
    return dovetail.compile(dropping(name), params={"w": weights(b)}, cache="off")


def bound(name: str, b: int, folder: Path) -> Program:
    return dovetail.compile(dropping(name), cache="off").bind({"w": weights(b)})


def bound_again(name: str, b: int, folder: Path) -> Program:
    return came(name, b + 2, folder).bind({"w": weights(b)})


def greedy(name: str, b: int, folder: Path) -> Program:
    return dovetail.compile(dropping(name, came=weights(b)), cache="off", engine="greedy")


def as_written(name: str, b: int, folder: Path) -> Program:
    return dovetail.compile(dropping(name, came=weights(b)), cache="off", without=["canonicalize", "fuse", "tidy"])


def by_reference(name: str, b: int, folder: Path) -> Program:
    return dovetail.compile(dropping(name, came=weights(b)), target="reference")


def specialized(name: str, b: int, folder: Path) -> Program:
    return came(name, b, folder).specialize({"b": b})


def specialized_then_bound(name: str, b: int, folder: Path) -> Program:
    return dovetail.compile(dropping(name), cache="off").specialize({"b": b}).bind({"w": weights(b)})


def cached(name: str, b: int, folder: Path) -> Program:
    dovetail.compile(dropping(name, came=weights(b + 1)), cache=str(folder))
    return dovetail.compile(dropping(name, came=weights(b)), cache=str(folder))


def saved(name: str, b: int, folder: Path) -> Program:
    path = folder / "graph.dovetail"
    dovetail.save(dropping(name, came=weights(b)), path)
    return dovetail.compile(dovetail.load(path), cache="off")


def printed(name: str, b: int, folder: Path) -> Program:
    text = print_graph(dropping(name))
    again = parse_graph(text, (*PRIMITIVES, *ALL))
    assert print_graph(again) == text
    return dovetail.compile(again, params={"w": weights(b)}, cache="off")


def donating(name: str, b: int, folder: Path) -> Program:
    return dovetail.compile(dropping(name, came=weights(b), donated=True), cache="off")


WAYS = (
    came,
    given_to_compile,
    bound,
    bound_again,
    greedy,
    as_written,
    by_reference,
    specialized,
    specialized_then_bound,
    cached,
    saved,
    printed,
    donating,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", DROPS)
def test_a_parameter_without_readers_binds_its_symbol(
    name: str, way: Callable[[str, int, Path], Program], tmp_path: Path
) -> None:
    program = way(name, 3, tmp_path)
    for number in (2.0, 5.0, 6.0):
        x = np.full(1, number, np.float32)
        inputs = {"x": x}
        if way is donating:
            inputs["state"] = np.zeros(4, np.float32)
        found = program.run(inputs)
        want = WANTED.get(name, lambda x, b: np.repeat(x, b))(x, 3)
        np.testing.assert_array_equal(found["y"], want)
        if way is donating:
            assert found["next"] is inputs["state"]
            np.testing.assert_array_equal(found["next"], number)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_shapes_of_parameters_without_readers_are_checked(target: str) -> None:
    """The program refuses what the graph as written refuses."""
    builder = Builder("two")
    x, w = builder.input("x", f32["b"]), builder.param("w", f32["b"])
    builder.output("y", ops.where(dovetail.graphs.constant(TRUE), x, w))
    program = dovetail.compile(builder.graph(), target=target).bind({"w": weights(3)})
    np.testing.assert_array_equal(program(x=weights(3))["y"], weights(3))
    with pytest.raises(BindError):
        program(x=weights(4))
    program.bind({"w": weights(4)})
    np.testing.assert_array_equal(program(x=weights(4))["y"], weights(4))


def test_a_static_parameter_without_readers_may_be_bound_and_is_not_needed() -> None:
    builder = Builder("static")
    x, w = builder.input("x", f32[3]), builder.param("w", f32[3])
    builder.output("y", ops.where(dovetail.graphs.constant(TRUE), x, w))
    program = dovetail.compile(builder.graph())
    np.testing.assert_array_equal(program(x=weights(3))["y"], weights(3))
    np.testing.assert_array_equal(program.bind({"w": weights(3)})(x=weights(3))["y"], weights(3))
    assert not program.params
    for wrong in (weights(4), np.zeros(3, np.int32)):
        with pytest.raises(BindError, match="parameter w"):
            program.bind({"w": wrong})
    with pytest.raises(BindError, match="no parameter named 'v'"):
        program.bind({"v": weights(3)})


def test_a_case_knows_the_sizes_of_parameters_without_readers() -> None:
    """Design 0017: where k is 1 another program runs, which learns c from the same parameter."""
    builder = Builder("case")
    x, k = builder.input("x", f32["b", 1]), builder.input("k", f32["k", 1])
    w = builder.param("w", f32["c"])
    builder.output("y", ops.where(dovetail.graphs.constant(TRUE), x * k, w))
    program = dovetail.compile(builder.graph()).bind({"w": weights(3)})
    for rows in (4, 1, 4, 1):
        found = program(x=np.full((4, 1), 2, np.float32), k=np.ones((rows, 1), np.float32))
        np.testing.assert_array_equal(found["y"], np.full((4, 3), 2, np.float32))
    assert program.cases == ("k = 1",)


def test_a_declared_parameter_is_verified() -> None:
    graph = dropping("never_read")
    verify(graph)
    for wrong in (leaf.input("w", f32[2]), leaf.param("x", f32[2]), leaf.param("w", i64["b"]), "w"):
        with pytest.raises(dovetail.errors.VerifyError):
            verify(replace(graph, declared=(*graph.declared, wrong)))  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@given(drawn=strategies.graphs(symbolic=True))
def test_every_symbol_is_bound_where_every_leaf_is_rewritten_away(
    drawn: tuple[Graph, Mapping[str, Array]],
) -> None:
    """Random graphs with parameters for inputs, and outputs that a constant condition replaces by zeros."""
    graph, feeds = drawn

    def hidden(value: Value, operands: tuple[Value, ...]) -> Value | None:
        return leaf.param(value.attrs["name"], value.tensor) if value.op is leaf.INPUT else None

    learnt = rebuild(graph, hidden)
    learnt = replace(learnt, inputs=(), declared=(), moved={}, origins={}, params={**graph.params, **feeds})
    never = dovetail.graphs.constant(np.array(False))
    outputs = {
        name: ops.where(never, v, ops.cast(dovetail.graphs.constant(np.zeros((), np.float32)), dtype=v.dtype))
        for name, v in learnt.outputs.items()
        if v.dtype is not bool_
    }
    if not outputs:
        return
    sizes = strategies.binding_of(learnt, {})
    program = dovetail.compile(replace(learnt, outputs=outputs), cache="off")
    found = program.run({})
    assert {name: a.shape for name, a in found.items()} == {
        name: tuple(evaluate(s, sizes) for s in v.shape) for name, v in outputs.items()
    }
    assert not any(a.any() for a in found.values())

"""Absolute reshapes: NumPy's elements, few ops, and no count that is only hoped for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, symbol
from dovetail.ir.leaf import input
from dovetail.ops.build import flatten, reshape
from dovetail.passes.specialize import specialize
from dovetail.targets.reference.interpreter import evaluate
from tests.ops.meaning import run


def ops_of(value: Value) -> list[str]:
    found: list[str] = []
    while value.operands:
        found.insert(0, value.op.name)
        value = value.operands[0]
    return found


@pytest.mark.parametrize(
    ("shape", "wanted", "written"),
    [
        ((2, 3), (2, 3), []),
        ((2, 3, 4), (6, 4), ["merge"]),
        ((2, 3, 4), (24,), ["merge"]),
        ((6, 4), (2, 3, 4), ["split"]),
        ((8, 4), (2, 4, 2, 2), ["split", "split"]),
        ((2, 3), (2, 1, 3), ["unsqueeze"]),
        ((2, 1, 3), (2, 3), ["squeeze"]),
        ((2, 3, 4, 5), (2, 12, 5), ["merge"]),
        ((2, 8, 5), (4, 4, 5), ["split", "merge"]),
        ((4, 6), (3, 8), ["merge", "split"]),
        ((5, 4, 6, 7), (5, 3, 8, 7), ["merge", "split"]),
        ((1, 2, 3), (2, 1, 3), ["permute"]),
        ((1, 1), (), ["squeeze"]),
        ((), (1, 1), ["unsqueeze"]),
        ((2, 4, 1, 1), (2, 2, 2), ["squeeze", "split"]),
    ],
)
def test_few_ops_are_written(shape: tuple[int, ...], wanted: tuple[int, ...], written: list[str]) -> None:
    value = reshape(input("x", f32[shape]), wanted)
    assert value.shape == wanted
    assert ops_of(value) == written


@given(st.data())
def test_elements_stay_in_their_order(data: st.DataObject) -> None:
    sizes = st.lists(st.integers(1, 6), max_size=4)
    shape, other = data.draw(sizes), data.draw(sizes)
    count = int(np.prod(shape, dtype=int))
    wanted = [s for s in other if count % s == 0]
    while count % int(np.prod(wanted, dtype=int)):
        wanted.pop()
    rest = count // int(np.prod(wanted, dtype=int))
    at = data.draw(st.integers(0, len(wanted)))
    array = np.arange(count).reshape(shape)
    asked: list[Size] = [*wanted[:at], data.draw(st.sampled_from((-1, rest))), *wanted[at:]]
    value = reshape(leaf.constant(array), asked)
    assert np.array_equal(run(value), array.reshape([*wanted[:at], rest, *wanted[at:]]))


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((0, 4), (4, 0)), ((0,), (0, 0)), ((2, 0, 3), (0,)), ((0, 4), (7, 0, 1)), ((0, 3), (0, 3)), ((0, 4), (0, 4, 1))],
)
def test_reshapes_of_nothing(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    value = reshape(leaf.constant(np.zeros(shape)), wanted)
    assert value.shape == wanted
    assert run(value).shape == wanted


def test_flatten() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    for axis, shape in ((0, (1, 24)), (1, (2, 12)), (-1, (6, 4)), (3, (24, 1))):
        assert np.array_equal(run(flatten(leaf.constant(array), axis=axis)), array.reshape(shape))


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((2, 3), (5,)),
        ((2, 3), (4, -1)),
        ((2, 3), (-1, -1)),
        ((2, 3), (-2, 3)),
        ((0, 3), (0, -1)),
        ((2, 3), (0, -1)),
        ((2, "s", 4), ("s", 4)),
        (("s", 4), ("s", 8)),
        (("s", 3), (0, -1)),
    ],
)
def test_another_number_of_elements(shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Also where a symbol could only make up for it by being 0."""
    sizes = [symbol(s) if isinstance(s, str) else s for s in wanted]
    with pytest.raises(TypeRuleError) as caught:
        reshape(input("x", f32[shape]), sizes)
    assert caught.value.hint


B, S, N = symbol("b"), symbol("s"), symbol("n")


@pytest.mark.parametrize(
    ("shape", "wanted", "result", "written"),
    [
        (("b", "s", 12), (B, S, 3, 4), (B, S, 3, 4), ["split"]),
        (("b", "s", 12), (-1, 12), (B * S, 12), ["merge"]),
        (("b", "s", 12), (B, -1, 3, 4), (B, S, 3, 4), ["split"]),
        (("b", 3, "s", 4), (-1, S, 4), (3 * B, S, 4), ["merge"]),
        (("b*s", 4), (B, S, 4), (B, S, 4), ["split"]),
        (("b*s", 4), (B, -1, 4), (B, S, 4), ["split"]),
        (("2*s",), (2, -1), (2, S), ["split"]),
        (("b", "s"), (S, B), (S, B), ["merge", "split"]),
    ],
)
def test_symbolic_sizes(
    shape: tuple[Any, ...], wanted: tuple[Size, ...], result: tuple[Size, ...], written: list[str]
) -> None:
    value = reshape(input("x", f32[shape]), wanted)
    assert value.shape == result
    assert ops_of(value) == written
    assert Graph.of(value).constraints == ()


def test_a_count_that_algebra_cannot_tell_is_recorded() -> None:
    x = input("x", f32["n", 4])
    value = reshape(x, (B, S, 4))
    assert value.shape == (B, S, 4)
    graph = Graph.of(value)
    assert [str(c) for c in graph.constraints] == ["n equals b*s"]
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    assert np.array_equal(evaluate(graph, {"x": array}, sizes={"b": 2, "s": 3})["y"], array.reshape(2, 3, 4))
    with pytest.raises(BindError):
        evaluate(graph, {"x": array}, sizes={"b": 2, "s": 2})


def test_a_rest_that_may_not_divide_is_recorded() -> None:
    x = input("x", f32["n", 5])
    value = reshape(x, (2, -1, 5))
    assert isinstance(value.shape[1], Dim)
    graph = Graph.of(value)
    assert [str(c) for c in graph.constraints] == ["n multiple_of 2"]
    array = np.arange(20, dtype=np.float32).reshape(4, 5)
    assert np.array_equal(evaluate(graph, {"x": array})["y"], array.reshape(2, 2, 5))
    with pytest.raises(BindError):
        evaluate(graph, {"x": array[:3]})


def test_a_size_of_one_is_stated_where_it_is_only_known_later() -> None:
    x = input("x", f32[4])
    value = reshape(x, (4, N))
    assert [str(c) for c in Graph.of(value).constraints] == ["1 equals n"]
    assert ops.sized in [v.op for v in Graph.of(value).values]


@pytest.mark.parametrize("batch", [0, 2])
def test_an_axis_of_no_elements_is_split_into_no_parts(batch: int) -> None:
    """0 elements in 0 parts say nothing of their size, and the type of the result does."""
    x = input("x", f32["b", 5, 4])
    graph = Graph.of(ops.split(ops.merge(x, axis=-2) * 2.0, axis=-2, parts=x.shape[0]))
    feeds = {"x": np.ones((batch, 5, 4), np.float32)}
    for found in (evaluate(graph, feeds), evaluate(specialize(graph, {"b": batch}), feeds)):
        assert found["y"].shape == (batch, 5, 4)

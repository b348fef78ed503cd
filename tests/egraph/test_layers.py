"""What repeats is found, told apart in full, solved once, and replayed."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.egraph.engine import EGraph, egraph_of
from dovetail.egraph.layers import Layers, Piece, Run, runs
from dovetail.egraph.replay import solve
from dovetail.egraph.saturate import Budget, saturate
from dovetail.ir.leaf import input, param
from tests.egraph.models import EVERYTHING, llama_of


def test_runs_are_found_between_what_does_not_repeat() -> None:
    layer = [1, 2, 3, 1, 4, 5, 6, 7]
    row = [90, 91, *layer * 5, 92, 93, 94]
    (found,) = runs(row)
    assert found.period == len(layer) and found.times == 5 and found.start in range(1, 3)


def test_two_different_runs_are_both_found() -> None:
    first, second = list(range(10, 20)), list(range(30, 42))
    found = runs([*first * 4, 1, 2, *second * 4])
    assert [(r.period, r.times) for r in found] == [(10, 4), (12, 4)]


def test_nothing_repeats_in_a_row_of_different_values() -> None:
    assert runs(list(range(50))) == [] and runs([]) == []
    assert Run(0, 1, 2) not in runs([1] * 3)


KNOWN: dict[Hashable, int] = {}
"""Looks are numbered alike in all tests, so that windows of different graphs can be compared."""


def _seen(x: Value, *, twice: bool = False, weight: str = "w") -> object:
    w = param(weight, f32[4, 4])
    y = ops.relu(x @ w)
    z = y + (y if twice else ops.exp(x))
    layers = Layers(Graph.of(z), KNOWN)
    return layers.seen(Piece(0, 0, len(layers.values))).key


def test_a_window_is_told_apart_by_all_that_a_rule_can_see() -> None:
    x = input("x", f32[2, 4])
    assert _seen(x) == _seen(input("other", f32[2, 4]), weight="v"), "names are nothing that a rule can see"
    assert _seen(x) != _seen(input("x", f32[3, 4])), "shapes are"
    assert _seen(x) != _seen(x, twice=True), "aliasing is"


def test_uses_outside_a_window_are_part_of_it() -> None:
    x, w = input("x", f32[2, 4]), param("w", f32[4, 4])
    y = x @ w
    alone, shared = (Layers(Graph.of(o), KNOWN) for o in ({"y": ops.relu(y)}, {"y": ops.relu(y), "z": ops.exp(y)}))
    assert alone.seen(Piece(0, 0, 4)).key != shared.seen(Piece(0, 0, 4)).key


def test_what_is_given_early_is_told_from_what_a_run_is_given() -> None:
    w = param("w", f32[4, 4])
    keys: list[object] = []
    for start in (w, input("x", f32[4, 4])):
        for _ in range(100):
            start = ops.tanh(start)
        layers = Layers(Graph.of(ops.exp(start)), KNOWN)
        seen = layers.seen(Piece(101, 101, 102))
        assert len(seen.outside) == 1, "what is made of many values is not shown"
        keys.append(seen.key)
    assert keys[0] != keys[1]


def test_what_is_made_of_few_values_is_shown_wherever_it_is_read() -> None:
    mask = ops.less_equal(ops.iota(size=4), 2)
    y = input("x", f32[4])
    for _ in range(90):
        y = ops.tanh(y)
    layers = Layers(Graph.of(ops.where(mask, y, 0.0) + ops.where(mask, ops.exp(y), 0.0)))
    last = len(layers.values)
    seen = layers.seen(Piece(last - 4, last - 4, last))
    assert mask in [layers.values[at] for at in seen.shown] and y in [layers.values[at] for at in seen.outside]


def test_cuts_are_where_the_fewest_values_are_handed_over() -> None:
    layers = Layers(llama_of(12))
    for piece in layers.pieces()[2:]:
        later = range(piece.start, len(layers.values))
        handed = {r for at in later for r in layers.reads[at] if r < piece.start}
        # Of what is not shown anyway, only the residual stream goes on.
        assert len(handed - set(layers.seen(Piece(piece.start, piece.start, piece.stop)).shown)) == 1


def _summed(count: int) -> Graph:
    """Layers, and the sum of a number of each, added in pairs: one, two or more sums come after each layer."""
    x = input("x", f32[4, 8])
    numbers: list[Value] = []
    for layer in range(count):
        y = ops.tanh(x @ param(f"w{layer}", f32[8, 8]) + param(f"b{layer}", f32[8]))
        x = ops.exp(ops.neg(ops.abs_(y))) + ops.relu(ops.sqrt(ops.abs_(x)))
        numbers.append(ops.squeeze(ops.reduce_sum(x * x, axes=(-2, -1)), axes=(-2, -1)))
    while len(numbers) > 1:
        pairs = [numbers[i] + numbers[i + 1] for i in range(0, len(numbers) - 1, 2)]
        numbers = [*pairs, *numbers[len(pairs) * 2 :]]
    return Graph.of({"norm": ops.sqrt(numbers[0]), "x": x})


@pytest.mark.slow
def test_layers_whose_numbers_are_added_in_a_tree_are_alike() -> None:
    graph = _summed(48)
    layers = Layers(graph)
    assert sorted(map(id, layers.values)) == sorted(map(id, graph.values))
    assert all(r < at for at, reads in enumerate(layers.reads) for r in reads)
    assert any(run.times >= 46 for run in layers.runs)
    solved = [len(solve(Layers(_summed(n)), EVERYTHING.phases(), Budget(), EGraph()).solved) for n in (48, 64)]
    assert solved[0] == solved[1] > 1


@pytest.mark.slow
def test_layers_are_solved_once() -> None:
    few, many = (solve(Layers(llama_of(n)), EVERYTHING.phases(), Budget(), EGraph()) for n in (12, 24))
    assert many.pieces == few.pieces + 12
    assert len(many.solved) == len(few.solved) < 8


@pytest.mark.slow
def test_replaying_gives_what_solving_the_whole_gives() -> None:
    graph = llama_of(12)
    uses = {v: graph.uses.count(v) for v in graph.values}
    whole, replayed = egraph_of(graph.values, uses), egraph_of(graph.values, uses)
    saturate(whole, EVERYTHING.phases())
    assert solve(Layers(graph), EVERYTHING.phases(), Budget(), replayed).pieces > 10
    assert len(replayed.leaders) == len(whole.leaders)
    for one, other in ((whole, replayed), (replayed, whole)):
        for value in graph.values:
            for node in list(one.equal(value)):
                size = other.size
                assert other.add(node) is other.find(value)
                assert other.size == size, "a node that only one of them has"

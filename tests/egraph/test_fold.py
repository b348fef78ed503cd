"""Many equal layers are decided as few, and the result is what deciding all of them gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from dovetail import Graph, ops
from dovetail.declare.cost import Machine
from dovetail.dtypes import f32
from dovetail.egraph import decide as deciding
from dovetail.egraph.decide import Decided, Vocabulary
from dovetail.egraph.fold import UnfoldableError, folded, unfolded
from dovetail.egraph.saturate import Budget
from dovetail.ir.leaf import input, param
from dovetail.ir.text import print_graph
from dovetail.models import BertShape, LlamaShape, bert, llama, llama_step
from dovetail.passes.pipeline import vocabulary
from dovetail.runtime.request import make_request
from tests.egraph.models import EVERYTHING, SETUP, canonical, decided

LAYERS = 11
LLAMA = LlamaShape(layers=LAYERS, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)
MODELS = {
    "llama": lambda: llama(LLAMA, batch=1, seq=8),
    "llama of any size": lambda: llama(LLAMA),
    "qwen": lambda: llama(replace(LLAMA, normed_heads=True), batch=1, seq=8),
    "llama step": lambda: llama_step(LLAMA, batch=1, past=4),
    "bert": lambda: bert(BertShape(layers=LAYERS, hidden=32, heads=4, inner=64, vocabulary=50, positions=16)),
}


def normed(count: int) -> Graph:
    """Layers and the root of a sum over the first and the last of them, whose sums stand elsewhere than layers do."""
    x = first = input("x", f32[4, 8])
    for layer in range(count):
        y = ops.tanh(x @ param(f"w{layer}", f32[8, 8]) + param(f"b{layer}", f32[8]))
        x = ops.exp(ops.neg(ops.abs_(y))) + ops.relu(ops.sqrt(ops.abs_(x)))
    number = [ops.squeeze(ops.reduce_sum(v * v, axes=(-2, -1)), axes=(-2, -1)) for v in (first, ops.sin(first), x)]
    return Graph.of({"early": number[0], "x": x, "norm": ops.sqrt(number[0] + number[1] + number[2])})


MODELS["layers and a norm"] = lambda: normed(24)
BLOCKS: Vocabulary = vocabulary(make_request(target="reference").setup)


def both(graph: Graph, words: Vocabulary, machine: Machine = SETUP.claims.machine) -> tuple[Decided, Decided]:
    """What is decided for a graph as it is, and folded."""
    task = deciding.task(words, machine=machine, budget=Budget())
    fold = folded(graph)
    assert fold is not None and len(fold.graph.values) < len(graph.values)
    return task.run(unfolded(graph)), task.run(fold)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_folding_changes_nothing(name: str) -> None:
    graph = canonical(MODELS[name]())
    whole, few = both(graph, EVERYTHING)
    assert print_graph(few.fused.graph) == print_graph(whole.fused.graph)
    assert few.search.nodes < whole.search.nodes
    assert few.search.chosen == pytest.approx(whole.search.chosen, rel=1e-9)
    assert few.search.greedy == pytest.approx(whole.search.greedy, rel=1e-9)
    assert Counter(a.rule for a in few.fused.applied) == Counter(a.rule for a in whole.fused.applied)
    assert {a.value for a in few.fused.applied} == {a.value for a in whole.fused.applied}
    for value in graph.values:
        assert few.fused.graph.moved.get(value) is whole.fused.graph.moved.get(value)
    assert {(m.rule, m.reason, m.root) for m in few.fused.missed} == {
        (m.rule, m.reason, m.root) for m in whole.fused.missed
    }


@pytest.mark.slow
def test_blocks_that_reach_over_whole_layers_are_folded_or_left() -> None:
    graph = canonical(MODELS["llama"]())
    try:
        whole, few = both(graph, BLOCKS)
    except UnfoldableError:
        return
    assert print_graph(few.fused.graph) == print_graph(whole.fused.graph)


@pytest.mark.slow
def test_misses_are_told_of_every_layer() -> None:
    x = input("x", f32[4, 8])
    for layer in range(24):
        # The bias of two axes is refused, in each layer.
        w, b = param(f"w{layer}", f32[8, 8]), param(f"b{layer}", f32[4, 8])
        x = ops.relu(ops.tanh(x) @ w + b) + ops.exp(ops.neg(ops.abs_(x)))
    whole, few = both(canonical(Graph.of(x)), EVERYTHING)
    assert len(few.fused.missed) == len(whole.fused.missed) > 0
    assert [m.root for m in few.fused.missed] and {m.root for m in few.fused.missed} == {
        m.root for m in whole.fused.missed
    }


@pytest.mark.exhaustive
def test_near_misses_are_told_of_every_layer() -> None:
    x = input("x", f32[4, 8])
    for layer in range(24):
        # No activation of a linear: all but one op match, in each layer.
        y = ops.sin(x @ param(f"w{layer}", f32[8, 8]) + param(f"b{layer}", f32[8]))
        x = ops.exp(ops.neg(ops.abs_(y))) + ops.relu(ops.sqrt(ops.abs_(x)))
    whole, few = both(canonical(Graph.of(x)), EVERYTHING)
    found, copied = ({(m.rule, m.message, m.now) for m in one.near_misses()} for one in (whole, few))
    assert copied == found and len({now for _, _, now in found}) >= 24
    kept = set(few.fused.graph.values)
    assert all(v in kept for _, _, now in copied for v in now)


def test_a_layer_that_differs_ends_the_row() -> None:
    def stack(odd: int) -> Graph:
        x = input("x", f32[4, 8])
        for layer in range(24):
            y = ops.tanh(x @ param(f"w{layer}", f32[8, 8]) + param(f"b{layer}", f32[8]))
            x = ops.exp(ops.neg(ops.abs_(y if layer != odd else ops.sin(y)))) + ops.relu(ops.sqrt(ops.abs_(x)))
        return canonical(Graph.of(x))

    even, odd = folded(stack(-1)), folded(stack(12))
    assert even is not None and (odd is None or len(odd.graph.values) > len(even.graph.values))


@pytest.mark.slow
def test_a_value_that_is_read_across_layers_is_not_folded_away() -> None:
    x = input("x", f32[4, 8])
    skipped = x
    for layer in range(24):
        x = ops.exp(ops.tanh(x @ param(f"w{layer}", f32[8, 8]) + param(f"b{layer}", f32[8]))) + ops.relu(x)
        skipped = x if layer == 9 else skipped
    found = decided(canonical(Graph.of(x + skipped)))
    assert found.search.chosen <= found.search.greedy * (1 + deciding.SAME)
    assert len([v for v in found.fused.graph.values if v.op.name in ("matmul", "linear")]) == 24


@pytest.mark.slow
def test_every_value_of_a_folded_model_has_a_chain() -> None:
    graph = canonical(MODELS["llama"]())
    found = decided(graph)
    assert found.selection is not None and len(found.selection.fold.copies) > 2
    kept = set(found.fused.graph.values)
    for position, value in enumerate(graph.values):
        steps = found.selection.explain_at(position)
        now = found.fused.graph.moved.get(value, value)
        assert steps or now not in kept or now.op is value.op

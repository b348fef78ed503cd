"""Save or compute again: the cut is the cheapest choice, and the graph of a choice computes the same."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Builder, Graph, library, ops
from dovetail.declare.cost import estimate
from dovetail.dtypes import f32
from dovetail.graphs import value_and_grad
from dovetail.ir.text import parse_graph, print_graph
from dovetail.ir.value import Value
from dovetail.ir.verify import verify
from dovetail.ir.walk import walk
from dovetail.ops.region import region
from dovetail.passes.recompute.choice import Halves, is_product, is_view
from dovetail.passes.recompute.min_cut import Network
from dovetail.passes.recompute.rebuild import with_choice
from dovetail.plan.alias import root_of
from dovetail.plan.fingerprint import fingerprint
from dovetail.runtime.compile import Compilation, compilation
from dovetail.runtime.request import make_request
from dovetail.runtime.vocabulary import vocabulary
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.reference.interpreter import evaluate


def feed_forward(rows: int = 256, inner: int = 512) -> Graph:
    """Two products with gelu between them, after a norm: x enters as an input with a gradient."""
    builder = Builder("feed_forward", lines=False)
    with builder.recording():
        x = builder.input("x", f32[rows, 64])
        h = library.layer_norm(x * 1.5, builder.param("gain", f32[64]), builder.param("bias", f32[64]), eps=1e-5)
        h = library.gelu(h @ builder.param("up", f32[64, inner]) + builder.param("b", f32[inner]))
        h = h @ builder.param("down", f32[inner, 64])
        builder.output("loss", ops.reduce_mean(h * h, axes=(-2, -1)))
    return value_and_grad(builder.graph())


def attention(length: int, *, in_parts: bool = False) -> Graph:
    """Attention of one layer, by weights with a gradient; in parts, its weights are scaled, which no kernel does."""
    builder = Builder("attention", lines=False)
    x = builder.input("x", f32[2, 2, length, 8])
    q, k, v = (x @ builder.param(n, f32[8, 8]) for n in "qkv")
    spelled = library.softmax(library.scores(q, k, scale=0.3)) * 0.9
    y = spelled @ v if in_parts else library.attention(q, k, v, scale=0.3)
    builder.output("loss", ops.reduce_mean(y * y, axes=(-4, -3, -2, -1)))
    return value_and_grad(builder.graph())


def test_attention_writes_no_scores() -> None:
    """Forward and backward pass are a kernel each."""
    steps = compiled(attention(64)).plan.steps
    assert {"attention", "attention_back"} <= {s.value.op.name for s in steps}
    assert all(result.shape[-2:] != (64, 64) for step in steps for result in step.results)


@pytest.mark.slow
def test_scores_in_parts_are_not_saved_and_other_products_are() -> None:
    """A product that is larger than both operands runs again."""
    made = compiled(attention(64, in_parts=True))
    found = made.lowered.state.recompute
    assert found is not None
    scores = [v for v in found.choice.again if is_product(v)]
    assert [str(v.type) for v in scores] == ["f32[2, 2, 64, 64]"]
    assert all(v.shape[-2:] != (64, 64) for v in found.choice.saved)
    short = compiled(attention(8, in_parts=True)).lowered.state.recompute
    assert short is not None and not any(is_product(v) for v in short.choice.again)


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.integers(0, n), st.integers(0, n), st.integers(0, 9)), max_size=12)
        )
    )
)
def test_no_other_cut_is_smaller(drawn: tuple[int, list[tuple[int, int, int]]]) -> None:
    count, edges = drawn
    network = Network()
    for _ in range(count - 1):
        network.node()
    listed = [(a, b, c) for a, b, c in edges if a != b]
    for a, b, c in listed:
        network.edge(a, b, c)

    def cut(sink: set[int]) -> int:
        return sum(c for a, b, c in listed if a not in sink and b in sink)

    inner = range(2, count + 1)
    sides = [
        {1, *(n for n, there in zip(inner, picked, strict=True) if there)}
        for picked in product((0, 1), repeat=len(inner))
    ]
    found = network.sink_side()
    assert 0 not in found and cut(found) == min(map(cut, sides))


def cost(halves: Halves, saved: set[Value], worth: float) -> float | None:
    """What a choice costs, counted plainly; None where it needs a value that is neither saved nor computed again."""
    total = sum(halves.bytes(v) * worth for v in saved if v not in halves.held)
    for value in walk(halves.readers, until=saved):
        if value not in saved and not halves.is_given(value):
            seconds = halves.seconds(value)
            if seconds is None or is_product(value):
                return None
            total += seconds
    return total


@pytest.mark.slow
@pytest.mark.parametrize("moves", [0.1, 1, 4, 32, 1000])
def test_no_other_choice_is_cheaper(moves: float) -> None:
    halves = Halves(feed_forward(), BUILT_IN)
    worth = moves / BUILT_IN.bytes_per_second
    candidates = [v for v in walk(halves.readers) if not halves.is_given(v) and not is_view(v)]
    assert len(candidates) < 14
    costs = [
        cost(halves, {v for v, taken in zip(candidates, picked, strict=True) if taken}, worth)
        for picked in product((False, True), repeat=len(candidates))
    ]
    chosen = halves.choose(worth, products=False)
    found = cost(halves, set(chosen.saved), worth)
    assert found is not None and found == pytest.approx(min(c for c in costs if c is not None), rel=1e-6)


def test_the_dearer_a_byte_the_less_is_saved() -> None:
    halves = Halves(feed_forward(), BUILT_IN)
    steps = [choice for _, choice in halves.ladder()]
    assert len(steps) > 1 and steps[-1].bytes == 0
    assert [s.bytes for s in steps] == sorted([s.bytes for s in steps], reverse=True)
    assert [s.seconds for s in steps] == sorted([s.seconds for s in steps])
    usual = halves.choose(halves.usual_worth(), products=False)
    assert not any(is_product(v) for v in usual.again) and any(is_product(v) for v in steps[-1].again)


@pytest.mark.parametrize(("times", "products"), [(1, False), (1, True), (1e6, True)])
def test_the_graph_of_a_choice_computes_the_same(times: float, products: bool) -> None:
    graph = feed_forward(rows=8, inner=16)
    halves = Halves(graph, BUILT_IN)
    choice = halves.choose(halves.usual_worth() * times, products=products)
    made = with_choice(halves, choice)
    verify(made)
    rng = np.random.default_rng(0)
    inputs, params = (
        {str(v.attrs["name"]): rng.normal(size=[estimate(s) for s in v.shape]) for v in leaves}
        for leaves in (graph.inputs, graph.signature)
    )
    before, after = (evaluate(g, inputs, params=params, lift=True) for g in (graph, made))
    assert all(np.array_equal(before[name], after[name]) for name in graph.outputs)
    read_again = {v.operands[0] for v in made.values if v.op is ops.again}
    assert read_again >= set(choice.saved) and choice.again


def compiled(graph: Graph, *without: str) -> Compilation:
    return compilation(graph, make_request(engine="greedy", without=without), history=True)


def saved_bytes(made: Compilation) -> int:
    """What steps of the backward pass read of steps of the forward pass, as planned."""
    graph = made.plan.graph
    forward = set(walk([graph.outputs["loss"]]))
    tensors = {t for step in made.plan.phase("run") if step.value in forward for t in step.results}
    backward = [step for step in made.plan.phase("run") if step.value not in forward]
    read = {root_of(v, made.plan.aliases) for step in backward for v in step.operands}
    return sum(estimate(t.tensor.bytes) for t in tensors & read)


@pytest.mark.slow
def test_the_plan_saves_what_was_chosen_and_no_more() -> None:
    graph = feed_forward()
    chosen, everything = compiled(graph), compiled(graph, "recompute")
    made = chosen.lowered.state.recompute
    assert made is not None and saved_bytes(chosen) == made.choice.bytes
    assert saved_bytes(chosen) < 0.5 * saved_bytes(everything)
    assert estimate(chosen.plan.peak) < estimate(everything.plan.peak)


def test_what_is_computed_again_joins_the_kernels_that_read_it() -> None:
    made = compiled(feed_forward())
    steps = [s.value for s in made.plan.phase("run") if any(v.op is ops.again for v in s.operands)]
    wide = [v for v in steps if v.shape == (256, 512)]
    assert len(wide) >= 2 and all(v.op is region for v in wide), "gelu and its derivative, from one saved tensor"


def test_the_history_is_replayed() -> None:
    made = compiled(feed_forward(rows=8, inner=16))
    history = made.lowered.history
    assert history is not None and any(edit.edit.rule == "recompute" for edit in history.edits)
    replayed = history.replay()
    assert all(replayed.outputs[name] is value for name, value in made.lowered.graph.outputs.items())


def test_the_forward_outputs_are_part_of_text_and_fingerprint() -> None:
    graph = feed_forward(rows=8, inner=16)
    assert graph.forward == ("loss",)
    text = print_graph(graph)
    read = parse_graph(text, vocabulary())
    assert read.forward == graph.forward and print_graph(read) == text
    plain = Graph.of(graph.outputs, name=graph.name, inputs=graph.inputs)
    prints = [fingerprint(g, target="cpu", alignment=64, options={}) for g in (graph, read, plain)]
    assert prints[0] == prints[1] != prints[2]

"""Random graphs through every pass and target, judged by the float64 reference of the graph as it was drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from dovetail import Graph, library
from dovetail.derive.fuse import fuse
from dovetail.derive.unfuse import unfuse
from dovetail.ir.literal import Array
from dovetail.ir.verify import verify
from dovetail.passes.canonicalize import canonicalize
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.passes.specialize import specialize
from dovetail.runtime.compile import compilation, compile, explain, make_request
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from dovetail.targets.reference.interpreter import evaluate
from tests.strategies import binding_of, graphs
from tests.tolerances import TABLE, Tolerance, assert_close

Drawn = tuple[Graph, dict[str, Array]]


def same(graph: Graph, other: Graph, feeds: dict[str, Array]) -> None:
    """Both graphs in float64: they may differ by reassociation, and by constants that folding has rounded."""
    wanted, got = evaluate(graph, feeds, lift=True), evaluate(other, feeds, lift=True)
    for name, value in graph.outputs.items():
        near = TABLE.get(value.dtype, Tolerance(0.0, 0.0))
        np.testing.assert_allclose(got[name], wanted[name], rtol=near.rtol, atol=near.atol)


@pytest.mark.slow
@given(graphs())
def test_canonical_graphs_mean_the_same(drawn: Drawn) -> None:
    graph, feeds = drawn
    canonical = canonicalize(graph)
    verify(canonical)
    same(graph, canonical, feeds)
    again = canonicalize(canonical)
    assert all(again.outputs[n] is canonical.outputs[n] for n in graph.outputs)


@pytest.mark.heavy
@given(graphs())
def test_fused_graphs_mean_the_same_and_unfuse_to_what_they_were(drawn: Drawn) -> None:
    graph, feeds = drawn
    canonical = canonicalize(graph)
    fused = fuse(canonical, library.ALL, near=True)
    verify(fused.graph)
    same(graph, fused.graph, feeds)
    spelled = canonicalize(unfuse(fused.graph))
    verify(spelled)
    same(graph, spelled, feeds)


@pytest.mark.slow
@given(graphs())
def test_legal_graphs_mean_the_same(drawn: Drawn) -> None:
    graph, feeds = drawn
    legal = legalize(fuse(canonicalize(graph), library.ALL).graph, CUDA, lowerings=LOWERINGS).graph
    verify(legal)
    same(graph, legal, feeds)


@pytest.mark.heavy
@given(graphs(symbolic=True))
def test_specialised_graphs_mean_the_same_before_and_after_fusion(drawn: Drawn) -> None:
    graph, feeds = drawn
    binding = binding_of(graph, feeds)
    early = fuse(canonicalize(specialize(graph, binding)), library.ALL).graph
    late = specialize(fuse(canonicalize(graph), library.ALL).graph, binding)
    verify(early)
    verify(late)
    same(graph, early, feeds)
    same(graph, late, feeds)


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["reference", "cpu"])
@given(drawn=graphs())
def test_programs_compute_what_was_drawn(target: str, drawn: Drawn) -> None:
    graph, feeds = drawn
    got, wanted = compile(graph, target=target, verify_each_pass=True).run(feeds), evaluate(graph, feeds, lift=True)
    for name, value in graph.outputs.items():
        assert_close(got[name], wanted[name], value.dtype)


@pytest.mark.heavy
@given(graphs())
def test_every_boundary_of_a_random_program_has_a_reason(drawn: Drawn) -> None:
    graph, _ = drawn
    report = explain(graph)
    assert all(b.reason and b.message for b in report.boundaries)
    assert str(report)


@pytest.mark.slow
@given(graphs())
def test_no_pass_loses_an_origin(drawn: Drawn) -> None:
    """Whatever a kernel computes can be named in the words of the author."""
    graph, _ = drawn
    final = compilation(graph, make_request()).lowered.graph
    named = [v for v in graph.values if v.operands and graph.where(v)]
    if len(named) == sum(bool(v.operands) for v in graph.values):
        assert all(final.where(v) for v in final.values if v.operands)

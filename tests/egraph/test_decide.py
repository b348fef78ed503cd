"""Deciding: never dearer than greedy fusion, the same numbers, a proof for every node, and an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.declare.cost import Prices
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive import laws
from dovetail.derive.fuse import ANY_MACHINE, fuse
from dovetail.dtypes import f32
from dovetail.egraph.decide import SAME, Vocabulary, decide
from dovetail.egraph.extract import extract
from dovetail.egraph.identity import identity
from dovetail.egraph.joined import graph_seconds
from dovetail.egraph.problem import problem_of
from dovetail.egraph.saturate import Budget
from dovetail.ir.leaf import input, param
from dovetail.ir.text import print_graph
from dovetail.ir.value import Value
from dovetail.ir.verify import verify
from dovetail.passes.canonicalize import canonicalize
from dovetail.runtime.cached import program_key
from dovetail.runtime.request import make_request
from dovetail.runtime.source import of_graph
from dovetail.settings import Settings
from dovetail.targets.reference.interpreter import evaluate
from tests.egraph.models import EVERYTHING, SETUP, STRICT, decided, llama_of, models, one_layer
from tests.egraph.oracle import apart, least_cost
from tests.egraph.proofs import is_real
from tests.tolerances import TABLE

MODELS = models()
SMALL = one_layer()
FOUND = [(op, variant) for op in library.ALL for variant in op.patterns]
SOME = FOUND[:: max(1, len(FOUND) // 60)]


def numbers(graph: Graph, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and parameters."""
    rng = np.random.default_rng(seed)

    def drawn(value: Value) -> np.ndarray:
        shape = tuple(s for s in value.shape if isinstance(s, int))
        if value.dtype.is_integer:
            return rng.integers(0, 2, shape).astype(value.dtype.numpy)
        return (rng.random(shape) + 0.5 if len(shape) == 1 else rng.normal(size=shape) * 0.2).astype(value.dtype.numpy)

    feeds, params = ({str(v.attrs["name"]): drawn(v) for v in some} for some in (graph.inputs, graph.parameters))
    return feeds, params


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_keeps_its_numbers_and_costs_no_more_than_greedy_makes_it(name: str) -> None:
    graph = MODELS[name]
    found = decided(graph)
    verify(found.fused.graph)
    assert found.search.chosen <= found.search.greedy * (1 + SAME)
    seconds = Prices(SETUP.claims.machine, {})
    assert graph_seconds(found.fused.graph, seconds) == pytest.approx(found.search.chosen, rel=1e-6)
    feeds, params = numbers(graph)
    before, after = (evaluate(g, feeds, params=params, lift=True) for g in (graph, found.fused.graph))
    for output in graph.outputs:
        close(after[output], before[output])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_chosen_node_has_a_proof_and_each_step_of_it_is_real(name: str) -> None:
    graph = MODELS[name]
    found = decided(graph)
    rules = [phase.rules for phase in EVERYTHING.phases()]
    feeds, params = numbers(graph)
    assert found.selection is not None, "the search fell short of greedy fusion"
    steps = {s.application: s for leader in found.selection.nodes for s in found.selection.explain(leader)}
    assert steps
    for step in steps.values():
        assert is_real(step.application, rules), step.application.name
        ends = {"before": step.before, "after": step.after}
        claim = Graph.of(ends, inputs=graph.inputs)
        bound = {str(v.attrs["name"]): params[v.attrs["name"]] for v in claim.parameters}
        proven = evaluate(claim, feeds, params=bound, lift=True)
        close(proven["after"], proven["before"])


@pytest.mark.slow
def test_a_wrong_step_is_found_out() -> None:
    found = decided(MODELS["llama"])
    assert found.selection is not None
    steps = [s for leader in found.selection.nodes for s in found.selection.explain(leader)]
    application = steps[0].application
    wrong = type(application)(
        application.rule, application.variant, "exact", application.root, application.root, application.covers
    )
    assert not is_real(wrong, [phase.rules for phase in EVERYTHING.phases()])


@pytest.mark.parametrize(("op", "variant"), SOME, ids=[f"{op.name}[{v.label}]" for op, v in SOME])
def test_greedy_and_the_e_graph_agree_where_both_apply(op: FusedOp[...], variant: Variant) -> None:
    chosen = laws.fitting(op, variant, seed=3)
    graph = canonicalize(laws.graph_of(laws.spelled(op, variant)(**chosen), chosen)).settled()
    needed = [p for p in library.ALL if p is op or p in parts_of(op)]
    greedy = fuse(graph, needed).graph
    found = decide(graph, Vocabulary(needed))
    seconds = Prices(ANY_MACHINE)
    assert found.search.chosen <= graph_seconds(greedy, seconds) * (1 + 1e-9)
    verify(found.fused.graph)


def parts_of(op: FusedOp[...]) -> set[FusedOp[...]]:
    found: set[FusedOp[...]] = set()
    pending = list(op.parts)
    while pending:
        part = pending.pop()
        if part not in found:
            found.add(part)
            pending += part.parts
    return found


def test_a_matmul_that_feeds_two_bias_adds_is_computed_once() -> None:
    x, w = input("x", f32[64, 256]), param("w", f32[256, 256])
    product = x @ w
    outputs = {name: product + param(name, f32[256]) for name in "ab"}
    found = decided(Graph.of(outputs))
    matmuls = [v for v in found.fused.graph.values if v.op.name in ("matmul", "linear", "matmul_add")]
    assert len(matmuls) == 1


def test_work_on_weights_alone_moves_to_bind_time() -> None:
    x, a, b = input("x", f32[64, 512]), param("a", f32[512, 512]), param("b", f32[512, 512])
    found = decided(Graph.of((x @ a) @ b))
    assert found.fused.graph.outputs["y"] is x @ (a @ b)
    assert found.search.chosen < found.search.greedy


@pytest.mark.slow
def test_strictly_only_rules_that_keep_every_bit_are_used() -> None:
    x, a, b = input("x", f32[64, 512]), param("a", f32[512, 512]), param("b", f32[512, 512])
    assert decided(Graph.of((x @ a) @ b), STRICT).fused.graph.outputs["y"] is (x @ a) @ b
    for graph in MODELS.values():
        found = decided(graph, STRICT)
        assert found.selection is not None
        used = [s.application for leader in found.selection.nodes for s in found.selection.explain(leader)]
        assert {a.numerics for a in used} <= {"exact"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_integer_program_agrees(name: str) -> None:
    found = decided(SMALL[name])
    assert found.selection is not None
    outputs = SMALL[name].outputs.values()
    problem = apart(problem_of(found.selection.egraph, outputs, Prices(SETUP.claims.machine, {})))
    assert extract(problem).cost == pytest.approx(least_cost(problem), rel=1e-6)


@pytest.mark.slow
def test_the_choice_is_the_same_every_time() -> None:
    texts = {print_graph(decided(llama_of(3)).fused.graph) for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        (Budget(nodes=40, growth=0), "nodes"),
        (Budget(rounds=1), "rounds"),
        (Budget(matches=5, growth=0), "matches"),
        (Budget(seconds=0.0), "seconds"),
    ],
)
def test_a_spent_budget_is_said_and_what_was_found_is_kept(budget: Budget, limit: str) -> None:
    graph = MODELS["llama"]
    found = decided(graph, budget=budget)
    assert limit in {s.limit for s in found.search.stopped}
    assert found.search.chosen <= found.search.greedy * (1 + SAME)
    verify(found.fused.graph)


@pytest.mark.slow
def test_values_and_origins_are_followed_to_their_place() -> None:
    found = decided(MODELS["llama"]).fused
    kept = set(found.graph.values)
    moved = [found.graph.moved.get(v, v) for v in MODELS["llama"].values]
    assert sum(v in kept for v in moved) >= 0.9 * len(moved)
    assert all(a.value in kept for a in found.applied)
    named = {v for v in found.graph.values if found.graph.origins.get(v)}
    assert all(v in named for v in found.graph.values if isinstance(v.op, FusedOp))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_program_of_the_e_graph_runs(target: str) -> None:
    graph = MODELS["llama"]
    feeds, params = numbers(graph)
    program = dovetail.compile(graph, target=target, engine="egraph", params=params, verify_each_pass=True)
    wanted = evaluate(graph, feeds, params=params, lift=True)["logits"]
    got = program(**feeds)
    near = TABLE[f32]
    np.testing.assert_allclose(got["logits"], wanted, rtol=near.rtol, atol=near.atol)
    assert program.report.count("swiglu") > 0


def test_an_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(dovetail.errors.OptionError, match="engine"):
        dovetail.compile(Graph.of(ops.exp(input("x", f32[2]))), engine="simulated annealing")
    assert Settings().engine == "egraph"


def test_programs_of_both_engines_are_kept_apart() -> None:
    graph = Graph.of(ops.exp(input("x", f32[2])))
    keys = [program_key(of_graph(graph), make_request(target="cpu", engine=e)) for e in ("greedy", "egraph")]
    assert keys[0] != keys[1]


def test_a_wrong_rule_is_named_by_the_step_that_moves_the_numbers() -> None:
    @identity(numerics="exact")
    def doubled_is_single(x: Value) -> Iterator[Value]:
        """exp(x) + exp(x) is exp(x): it is not."""
        yield ops.exp(x) + ops.exp(x)
        yield ops.exp(x)

    x = input("x", f32[64, 64])
    graph = Graph.of(ops.tanh(ops.exp(x) + ops.exp(x)) @ param("w", f32[64, 8]))
    found = decided(graph, replace(EVERYTHING, identities=(*EVERYTHING.identities, doubled_is_single)))
    assert found.selection is not None
    feeds, params = numbers(graph)
    moved: list[str] = []
    for leader in found.selection.nodes:
        for step in found.selection.explain(leader):
            claim = Graph.of({"before": step.before, "after": step.after}, inputs=graph.inputs)
            bound = {str(v.attrs["name"]): params[v.attrs["name"]] for v in claim.parameters}
            ends = evaluate(claim, feeds, params=bound, lift=True)
            if not np.allclose(ends["before"], ends["after"], rtol=1e-9):
                moved.append(step.application.rule)
    assert set(moved) == {"doubled_is_single"}

"""egglog as the second engine: the same matches and the same cost as ours, and programs that run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, Value, fused_op, library, ops
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive import laws
from dovetail.derive.fuse import ANY_MACHINE, strata
from dovetail.dtypes import f32
from dovetail.egraph.decide import Vocabulary
from dovetail.egraph.egglog.session import Matched, by_egglog
from dovetail.egraph.engine import egraph_of
from dovetail.egraph.saturate import Budget, saturate
from dovetail.ir.leaf import constant, input, param
from dovetail.passes.canonicalize import canonicalize
from dovetail.runtime.source import source_of
from dovetail.targets.reference.interpreter import evaluate
from tests.egraph.engines import agree, needs_egglog
from tests.egraph.models import EVERYTHING, SETUP, canonical, models
from tests.egraph.proofs import is_real
from tests.egraph.test_decide import numbers, parts_of
from tests.strategies import graphs
from tests.tolerances import TABLE

MODELS = models()
SOME = [(op, op.patterns[0]) for op in library.ALL]
EXPORTED = ("bert__ts14__eager__dynamic", "llama__dynamo18__sdpa__dynamic", "gptj__dynamo18__eager__dynamic")
FOLDER = Path(__file__).parents[1] / "data" / "exporters"


@needs_egglog
@pytest.mark.parametrize("name", MODELS)
def test_both_engines_agree_on_a_model(name: str) -> None:
    found = agree(MODELS[name], EVERYTHING, SETUP.claims.machine)
    assert found.saturation.fired
    rules = [phase.rules for phase in EVERYTHING.phases()]
    fusions = [a for a in found.saturation.log if a.rule in {op.name for op in EVERYTHING.ops}]
    assert fusions and all(is_real(a, rules) for a in fusions[:: len(fusions) // 4 + 1])


@needs_egglog
@pytest.mark.parametrize("name", ["llama step", "bert"])
def test_egglog_unites_what_our_e_graph_unites(name: str) -> None:
    graph, rules = MODELS[name], by_egglog(strata(EVERYTHING.ops), False)

    def finder(stages: Sequence[Sequence[FusedOp[...]]], strict: bool) -> list[Matched]:
        return rules

    words = replace(EVERYTHING, groups=(), finder=finder)
    egraph = egraph_of(graph.values, {v: graph.uses.count(v) for v in graph.values})
    saturate(egraph, words.phases(), Budget())
    session = rules[-1].session
    assert session.facts is not None
    named = [(c, session.facts.values[n]) for n, c in session.engine.classes().items()]
    pairs = {(c, egraph.find(value)) for c, value in named if value in egraph}
    assert len(pairs) == len({c for c, _ in pairs}) == len({v for _, v in pairs}) > 50


@needs_egglog
@pytest.mark.parametrize(("op", "variant"), SOME, ids=[op.name for op, _ in SOME])
def test_both_engines_agree_on_a_declared_op(op: FusedOp[...], variant: Variant) -> None:
    chosen = laws.fitting(op, variant, seed=3)
    graph = canonicalize(laws.graph_of(laws.spelled(op, variant)(**chosen), chosen)).settled()
    words = Vocabulary([o for o in library.ALL if o is op or o in parts_of(op)])
    assert op.name in agree(graph, words, ANY_MACHINE).saturation.fired


@needs_egglog
@pytest.mark.parametrize("name", EXPORTED)
def test_both_engines_agree_on_an_exported_file(name: str) -> None:
    graph = canonical(source_of(FOLDER / f"{name}.onnx").graph())
    fired = agree(graph, EVERYTHING, SETUP.claims.machine).saturation.fired
    assert fired["linear"] and fired["attention"] + fired["rope_attention"]


@needs_egglog
@settings(max_examples=6)
@given(graphs(nodes=(5, 15)))
def test_both_engines_agree_on_random_graphs(drawn: tuple[Graph, dict[str, NDArray[np.generic]]]) -> None:
    agree(canonical(drawn[0]), EVERYTHING, SETUP.claims.machine)


@needs_egglog
@pytest.mark.parametrize(("name", "target"), [("llama", "cpu"), ("unet", "reference")])
def test_a_program_of_egglog_computes_what_the_graph_says(name: str, target: str) -> None:
    graph = MODELS[name]
    feeds, params = numbers(graph)
    program = dovetail.compile(graph, target=target, engine="egglog", params=params, verify_each_pass=True)
    wanted, got = evaluate(graph, feeds, params=params, lift=True), program(**feeds)
    near = TABLE[f32]
    for output in graph.outputs:
        np.testing.assert_allclose(got[output], wanted[output], rtol=near.rtol, atol=near.atol)
    assert len([v for v in program.plan.graph.values if isinstance(v.op, FusedOp)]) > 1 or target == "reference"


@fused_op
def halved(x: Value, b: Value) -> Value:
    """A sum with a half."""
    return x * 0.5 + b


@halved.requires(reason="the shape is {b.shape}", hint="none")
def sizes_rise(b: Value) -> bool:
    """A loop over a shape cannot be traced: no rule of egglog can ask it."""
    return all(isinstance(s, int) and s > 2 for s in b.shape)


@needs_egglog
@pytest.mark.parametrize(("width", "fused"), [(4, True), (2, False)])
@pytest.mark.parametrize("spell", ["times", "over"])
def test_a_guard_that_no_rule_can_ask_is_asked_of_each_match(width: int, fused: bool, spell: str) -> None:
    x, b = input("x", f32[3, width]), param("b", f32[3, width])
    graph = Graph.of((x * 0.5 if spell == "times" else x / 2.0) + b)
    found = agree(graph, Vocabulary([halved]), ANY_MACHINE)
    assert bool(found.saturation.fired) is fused


@needs_egglog
def test_whole_numbers_meet_patterns_that_ask_for_infinity() -> None:
    keep = constant(np.array([True, False]))
    graph = Graph.of({"y": ops.where(keep, input("i", dovetail.dtypes.i32[2]), constant(np.array(7, np.int32)))})
    agree(graph, EVERYTHING, SETUP.claims.machine)


def test_without_egglog_the_engine_is_refused_with_the_command_to_add_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "egglog", None)
    graph = Graph.of(ops.exp(input("x", f32[2])))
    with pytest.raises(dovetail.errors.OptionError, match="egglog is not installed") as caught:
        dovetail.compile(graph, engine="egglog")
    assert "pip install 'dovetail-ml[egglog]'" in caught.value.hint

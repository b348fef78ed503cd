"""The pipeline: stages that can be shown, entered and left out, one pass at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest

from dovetail import Graph, Value, blocks, library, ops
from dovetail.dtypes import f32
from dovetail.ir.graph import Builder
from dovetail.ir.leaf import input, param
from dovetail.ir.origin import Origin, scope
from dovetail.ir.text import parse_graph, print_graph
from dovetail.library.linear import linear
from dovetail.library.swiglu import swiglu
from dovetail.ops.region import region
from dovetail.passes.pipeline import PASSES, REQUIRED, Lowered, StageName
from dovetail.runtime.compile import compilation, make_request
from dovetail.runtime.vocabulary import vocabulary
from dovetail.targets.reference.interpreter import evaluate

STAGES: tuple[StageName, ...] = get_args(StageName)
NAMES = tuple(step.name for step in PASSES)


def model() -> Graph:
    """A block, a dense layer, and elementwise ops that no rule names."""
    builder = Builder("model", lines=False)
    with builder.recording():
        x = builder.input("x", f32["s", 8])
        up, gate, down = (builder.param(n, f32[s]) for n, s in (("up", (8, 16)), ("gate", (8, 16)), ("down", (16, 8))))
        with scope("ffn"):
            y = blocks.swiglu_ffn(x, up, gate, down)
        with scope("head"):
            y = ops.relu(y @ builder.param("w", f32[8, 4]) + builder.param("b", f32[4]))
        with scope("tail"):
            y = ops.exp(ops.neg(y) * 0.5)
        builder.output("y", y)
    return builder.graph()


def lowered(graph: Graph, **options: Any) -> Lowered:
    return compilation(graph, make_request(**options, verify_each_pass=True)).lowered


def by_hand(arrays: dict[str, Any]) -> Any:
    x = arrays["x"]
    pre = x @ arrays["gate"]
    y = ((x @ arrays["up"]) * pre / (1 + np.exp(-pre))) @ arrays["down"]
    return np.exp(-np.maximum(y @ arrays["w"] + arrays["b"], 0) / 2)


def arrays_for(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"x": (rows, 8), "up": (8, 16), "gate": (8, 16), "down": (16, 8), "w": (8, 4), "b": (4,)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def judge(graph: Graph) -> None:
    """The graph computes the model."""
    arrays = arrays_for(3)
    got = evaluate(graph, {"x": arrays.pop("x")}, params=arrays, lift=True)["y"]
    np.testing.assert_allclose(got, by_hand(arrays_for(3)), rtol=1e-9)


@pytest.mark.slow
def test_each_stage_is_what_its_name_says() -> None:
    found = {stage: lowered(model()).stage(stage) for stage in STAGES}
    assert found["hir"].count(blocks.swiglu_ffn) == 1
    assert found["mir"].count(blocks.swiglu_ffn) == found["mir"].count(swiglu) == 0
    assert (found["fused"].count(swiglu), found["fused"].count(linear), found["fused"].count(region)) == (1, 1, 0)
    # The region after the linear is its epilogue.
    assert (found["legal"].count(swiglu), found["legal"].count(linear), found["legal"].count(region)) == (1, 0, 1)
    for graph in found.values():
        judge(graph)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_prints_reads_back_and_can_be_the_entry(stage: StageName) -> None:
    made = lowered(model())
    again = parse_graph(print_graph(made.stage(stage)), vocabulary())
    assert again.outputs["y"] is made.stage(stage).outputs["y"]
    entered = lowered(again).graph
    assert entered.outputs["y"] is made.graph.outputs["y"]
    judge(entered)


def test_every_pass_is_shown_before_and_after() -> None:
    records = lowered(model(), target="cuda").records
    assert [r.name for r in records] == list(NAMES)
    for one, two in pairwise(records):
        assert one.after.outputs == two.before.outputs
    for record in records:
        judge(record.before)
        judge(record.after)


@pytest.mark.parametrize("name", sorted(set(NAMES) - REQUIRED))
@pytest.mark.parametrize("target", ["cpu", "cuda", "reference"])
def test_every_pass_can_be_switched_off(name: str, target: str) -> None:
    made = lowered(model(), target=target, without=[name])
    assert name not in [r.name for r in made.records]
    judge(made.graph)


def test_where_nothing_matches_nothing_changes() -> None:
    x = input("x", f32[4, 8])
    graph = Graph.of(ops.reduce_max(ops.cum_sum(x, axis=-1), axes=(-2,)))
    for record in lowered(graph).records:
        assert record.after.outputs["y"] is graph.outputs["y"], record.name


def test_names_and_origins_are_kept_by_every_pass() -> None:
    made = lowered(model(), target="cuda")
    for record in made.records:
        graph = record.after
        assert [v.attrs["name"] for v in graph.inputs] == ["x"]
        assert {p.attrs["name"] for p in graph.parameters} == {"up", "gate", "down", "w", "b"}
        scopes = {o for v in graph.values for o in graph.origins.get(v, ())}
        assert {Origin("module", name) for name in ("ffn", "head", "tail")} <= scopes, record.name
    final = made.graph
    (gated,) = (v for v in final.values if v.op is swiglu)
    assert final.where(gated) == "ffn"


def test_a_parameter_declared_after_its_reader_is_one_like_any_other() -> None:
    def written(late: bool) -> Value:
        x, w = input("x", f32[4, 8]), param("w", f32[8, 8])
        b = None if late else param("b", f32[8])
        product = x @ w
        return ops.relu(product + (param("b", f32[8]) if b is None else b))

    results = [lowered(Graph.of(written(late))).graph.outputs["y"] for late in (False, True)]
    assert results[0] is results[1]
    assert results[0].op is linear


def test_the_vocabulary_of_a_request_is_the_library_and_the_users_own() -> None:
    assert make_request().setup.ops == library.ALL

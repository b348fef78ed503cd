"""The history of a graph: edits that can be made again one by one, and chains from every kernel to the user's nodes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.declare.fused import FusedOp
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.ir.verify import verify
from dovetail.models import BertShape, LlamaShape, ResnetShape, bert, llama, llama_step, resnet, unet
from dovetail.ops.region import region
from dovetail.passes.epilogues import EPILOGUE, PROLOGUE
from dovetail.passes.history import History
from dovetail.passes.pipeline import Lowered
from dovetail.runtime.compile import compilation
from dovetail.runtime.load import load
from dovetail.runtime.random_inputs import random_inputs
from dovetail.runtime.request import make_request
from dovetail.targets.reference.interpreter import evaluate
from tests.frontends.onnx.test_exporters import FOLDER

_LLAMA = LlamaShape(layers=6, hidden=16, heads=4, kv_heads=2, inner=24, vocabulary=50)
MODELS = {
    "bert": lambda: bert(BertShape(layers=2, hidden=16, heads=4, inner=32, vocabulary=50, positions=16)),
    "llama": lambda: llama(_LLAMA),
    "llama_step": lambda: llama_step(_LLAMA),
    "resnet": lambda: resnet(ResnetShape(blocks=(1, 1), width=4, classes=5), image=16),
    "unet": lambda: unet(8, groups=2, image=8),
    "lstm": lambda: load(FOLDER / "lstm__ts17__static.onnx"),
    "gpt_neox": lambda: load(FOLDER / "gpt_neox-hf4__ts14__eager__dynamic.onnx"),
}
ENGINES = ("greedy", "egraph")


@cache
def lowered(model: str, engine: str = "greedy") -> Lowered:
    return compilation(MODELS[model](), make_request(engine=engine), history=True).lowered


def history_of(found: Lowered) -> History:
    assert found.history is not None
    return found.history


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_all_edits_made_again_give_the_very_same_values(model: str, engine: str) -> None:
    found = lowered(model, engine)
    again = history_of(found).replay()
    assert {name: again.outputs[name] is v for name, v in found.graph.outputs.items()} == dict.fromkeys(
        again.outputs, True
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["bert", "llama", "gpt_neox"])
def test_any_number_of_edits_leaves_a_graph_that_means_the_same(model: str, engine: str) -> None:
    history = history_of(lowered(model, engine))
    drawn = random_inputs(history.start)
    wanted = evaluate(history.start, drawn.feeds, params=drawn.params, lift=True)
    for count in np.linspace(0, len(history.edits), 7).astype(int):
        graph = history.replay(int(count))
        verify(graph)
        for name, array in evaluate(graph, drawn.feeds, params=drawn.params, lift=True).items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-6, atol=1e-6, err_msg=f"{count} edits")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
def test_every_fused_node_has_a_chain_from_the_nodes_as_written(model: str, engine: str) -> None:
    found = lowered(model, engine)
    history = history_of(found)
    start = set(history.start.values)
    fused = [v for v in found.graph.values if isinstance(v.op, FusedOp) or v.op is region]
    assert fused or model == "lstm"
    for value in fused:
        chain = history.chain(value)
        assert chain.origins and start.issuperset(chain.origins)
        if value.op in {v.op for v in chain.origins}:
            continue  # as the user wrote it
        rules = {link.edit.rule for link in chain.links} | {e.rule for link in chain.links for e in link.edit.proof}
        # A block that is spelled out holds fused ops of its own.
        assert not rules.isdisjoint({value.op.name, EPILOGUE, PROLOGUE}) or any(
            r.startswith("lower ") for r in rules
        ), value


def test_an_edit_is_told_at_the_node_it_was_about() -> None:
    y = ops.relu(input("x", f32["n", 4]) @ param("w", f32[4, 3]) + param("b", f32[3]))
    history = history_of(compilation(Graph.of(y), make_request(), history=True).lowered)
    (linear,) = [m.edit for m in history.edits if m.edit.rule == "linear"]
    assert history.nodes(linear)[0] is y
    chain = history.chain(history.replay().outputs["y"])
    assert [m.edit for m in chain.links][-1] is linear
    assert {v.op.name for v in chain.origins} == {"matmul", "add", "relu"}


@pytest.mark.slow
def test_nothing_is_written_down_unless_asked() -> None:
    graph = MODELS["bert"]()
    plain = compilation(graph, make_request()).lowered
    assert plain.history is None
    told = compilation(graph, make_request(), history=True).lowered
    assert all(told.graph.outputs[name] is v for name, v in plain.graph.outputs.items())

"""Small graphs as the e-graph is given them: blocks spelled out, in canonical form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from dovetail.egraph.decide import Decided, Vocabulary, decide
from dovetail.egraph.saturate import Budget
from dovetail.ir.graph import Graph
from dovetail.models import BertShape, LlamaShape, ResnetShape, bert, llama, llama_step, resnet, unet
from dovetail.passes.pipeline import PASSES, Setup, lower, vocabulary
from dovetail.runtime.request import make_request

SETUP: Setup = make_request(target="cpu").setup
EVERYTHING: Vocabulary = vocabulary(SETUP)
STRICT: Vocabulary = replace(EVERYTHING, strict=True)

_LLAMA = LlamaShape(hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)
_BERT = BertShape(layers=2, hidden=32, heads=4, inner=64, vocabulary=50, positions=16)


def llama_of(layers: int) -> Graph:
    return canonical(llama(replace(_LLAMA, layers=layers), batch=1, seq=8))


@cache
def one_layer() -> Mapping[str, Graph]:
    """Models small enough for an integer program."""
    encoder = bert(replace(_BERT, layers=1), batch=1, seq=8)
    return {"llama": llama_of(1), "bert": canonical(encoder), **{n: models()[n] for n in ("resnet", "unet")}}


@cache
def models() -> Mapping[str, Graph]:
    """One of each kind."""
    graphs = {
        "llama": llama(replace(_LLAMA, layers=2), batch=1, seq=8),
        "qwen": llama(replace(_LLAMA, layers=2, normed_heads=True), batch=1, seq=8),
        "llama step": llama_step(replace(_LLAMA, layers=2), batch=1, past=4),
        "bert": bert(_BERT, batch=1, seq=8),
        "resnet": resnet(ResnetShape(blocks=(1, 1), width=8, classes=10), batch=1, image=16),
        "unet": unet(8, groups=4, batch=1, image=8),
    }
    return {name: canonical(graph) for name, graph in graphs.items()}


def canonical(graph: Graph) -> Graph:
    passes = [p for p in PASSES if p.name in ("lower_blocks", "canonicalize")]
    return lower(graph, SETUP, passes).graph.settled()


def decided(graph: Graph, words: Vocabulary = EVERYTHING, budget: Budget | None = None) -> Decided:
    return decide(graph, words, machine=SETUP.claims.machine, budget=budget)

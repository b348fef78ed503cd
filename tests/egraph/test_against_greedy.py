"""The e-graph beside greedy fusion, at the end of the pipeline: never dearer, and never more kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import dovetail
from dovetail import Graph
from dovetail.models import BertShape, LlamaShape, bert, llama, llama_step, resnet, unet
from dovetail.report.report import Report
from dovetail.runtime.compile import explain

FILES = sorted((Path(__file__).parents[1] / "data" / "exporters").glob("*.onnx"))
SMALL = LlamaShape(layers=3, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)
MODELS: dict[str, Callable[[], Graph]] = {
    "bert": lambda: bert(BertShape(layers=2, hidden=64, heads=4, inner=128), batch=1, seq=16),
    "llama": lambda: llama(SMALL, batch=1, seq=8),
    "llama step": lambda: llama_step(SMALL, batch=1, past=16),
    "resnet": lambda: resnet(batch=1, image=32),
    "unet": lambda: unet(batch=1),
}
"""Every third file: each takes a fifth of a second."""
ALL = {**{path.stem: partial(dovetail.load, path) for path in FILES[::3]}, **MODELS}


def kernels(report: Report) -> int:
    return sum(k.phase == "run" for k in report.kernels)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ALL)
def test_never_dearer_and_never_more_kernels(name: str) -> None:
    graph = ALL[name]()
    greedy, searched = (explain(graph, target="cpu", engine=engine) for engine in ("greedy", "egraph"))
    assert searched.predicted_seconds <= greedy.predicted_seconds * (1 + 1e-9)
    assert kernels(searched) <= kernels(greedy)
    # What is done once decides between programs that take the same time.
    faster = searched.predicted_seconds < greedy.predicted_seconds * (1 - 1e-9)
    assert faster or len(searched.kernels) <= len(greedy.kernels)

"""Row kernels with several results: what one writes is not what another still reads."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import library
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


@pytest.mark.parametrize("names", [("normed", "sum"), ("sum", "normed")])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_sum_that_is_kept_beside_its_norm(names: tuple[str, str], norm: str) -> None:
    x, r, gain = leaf.input("x", f32["b", 33]), leaf.input("r", f32["b", 33]), leaf.input("gain", f32[33])
    total = x * 2.0 + r * 3.0
    normed = library.layer_norm(total, gain, eps=1e-5) if norm == "layer" else library.rms_norm(total, gain, eps=1e-5)
    values = {"normed": normed, "sum": total}
    graph = Graph.of({name: values[name] for name in names})
    # By cost the sum would be a kernel of its own here, with what is in front of it.
    program = dovetail.compile(graph, engine="greedy")
    assert program.report.count(f"residual_{norm}_norm") == 1
    rng = np.random.default_rng(0)
    for rows in (1, 5):
        feeds = {"x": rng.standard_normal((rows, 33)), "r": rng.standard_normal((rows, 33)), "gain": np.ones(33)}
        feeds = {name: a.astype(np.float32) for name, a in feeds.items()}
        found, expected = program.run(feeds), evaluate(graph, feeds, lift=True)
        for name in names:
            assert_close(found[name], expected[name], f32)

"""One token of decoders on the simulated device: a KV cache that is updated in place, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dovetail
from dovetail.ir.graph import Graph
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.benchmark import benchmark
from tests.targets.cuda.simulated import SimulatedDriver, target_of

CACHED = 20


DECODE = benchmark("decode")
SMALL = {"layers": 1, "hidden": 64, "heads": 4, "inner": 96, "vocabulary": 100}
SHAPES = {
    "qwen3": replace(DECODE.SHAPES["qwen3_0.6b"], kv_heads=2, head_width=32, **SMALL),
    "llama": replace(DECODE.SHAPES["llama_1b"], kv_heads=2, **SMALL),
    "gpt2": replace(DECODE.SHAPES["gpt2"], positions=64, **SMALL),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHAPES)
def test_a_token_and_its_cache_are_near_the_reference(name: str) -> None:
    graph: Graph = DECODE.step_graph(SHAPES[name])
    weights, feeds = DECODE.weights_of(graph), DECODE.feeds_of(SHAPES[name], CACHED)
    wanted = evaluate(graph, feeds, params=weights, lift=True)
    program = dovetail.compile(graph, target=target_of(SimulatedDriver())).bind(weights)
    caches = program.to_device(feeds)
    found = program.run(caches, outputs="device")
    assert all(found[output] is caches[source] for output, source in graph.donated.items())
    for output, value in wanted.items():
        got = np.asarray(found[output].numpy(), np.float64)
        assert np.linalg.norm(got - value) <= 2e-2 * np.linalg.norm(value), output

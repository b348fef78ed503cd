"""One token of decoders on the simulated device: a KV cache that is updated in place, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dovetail
from dovetail.ir.graph import Graph
from dovetail.kernels.device import Cooperative
from dovetail.targets.cuda.code.ptx_compiler import verified
from dovetail.targets.cuda.runs.run import steps_of
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
@pytest.mark.parametrize("cooperative", ["on", "off"])
def test_llvm_takes_the_kernels_of_whole_sizes(name: str, cooperative: Cooperative) -> None:
    """Schedules of whole sizes have loops and rooms that those of small ones lack."""
    (shape,) = [of for known, of in DECODE.SHAPES.items() if known.startswith(name)]
    device = SimulatedDriver()
    device.description = replace(device.description, cooperative=cooperative)
    graph: Graph = DECODE.step_graph(replace(shape, layers=4))
    plan = dovetail.compile(graph, target=target_of(device)).plan
    every = {made.text for _, kernels in steps_of(plan, device=device.description) for made in kernels or ()}
    assert len(every) >= 4
    for text in every:
        verified(text)


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

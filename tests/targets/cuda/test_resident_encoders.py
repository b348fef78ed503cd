"""Encoders of many rows as passes of one kernel, and what decides between that and launches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph
from dovetail.dtypes import f32
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Kernel, MultiplyMatrices, MultiplyShared, SubGrid
from dovetail.kernels.matrix_instruction import MMA
from dovetail.models import BertShape, bert, random_weights
from dovetail.plan.plan import Plan
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import residency_of, steps_of
from dovetail.targets.gpu.persistent.choice import Residency
from dovetail.targets.gpu.persistent.runs import PersistentRuns
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.benchmark import benchmark
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.targets.cuda.test_decode import DECODE
from tests.targets.cuda.timed import with_timings

pytestmark = pytest.mark.heavy

WHOLE = replace(H200, cluster=8, bulk_copies=True, dependent_intensity=32.0)
FEW = replace(WHOLE, multiprocessors=4)
"""So few that blocks take several turns."""
WARPS = replace(FEW, matrix_instructions=MMA)


ENCODERS = benchmark("encoders")
TINY = {
    # 37 and 36 rows: from 33 on, products alone are by warpgroups, with tensor maps.
    "vit": ENCODERS.VitShape(ENCODERS.Layers(4, 32, 2, 64), image=48, patch=8, classes=16),
    "whisper": ENCODERS.WhisperShape(ENCODERS.Layers(4, 32, 2, 64), mels=8, frames=72),
}


def _device(description: GpuDevice) -> SimulatedDriver:
    found = SimulatedDriver()
    found.description = description
    return found


def _kernels(graph: Graph, description: GpuDevice) -> list[Kernel]:
    plan = dovetail.compile(graph, target=target_of(_device(description))).plan
    found = [made for _, kernels in steps_of(plan, device=description) for made in kernels or ()]
    assert all([f"@{made.kernel.name}(" in made.text for made in found])
    return [made.kernel for made in found]


def _run(name: str, description: GpuDevice, times: int = 2) -> tuple[Any, list[str]]:
    graph: Graph = ENCODERS.graph_of(TINY[name])
    device = _device(description)
    program = dovetail.compile(graph, target=target_of(device)).bind(ENCODERS.weights_of(graph))
    first, *others = [program.run(ENCODERS.feed_of(TINY[name]))["y"] for _ in range(times)]
    for found in others:
        np.testing.assert_array_equal(found, first)
    return first, [line for line in device.log if line.startswith("launch ")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TINY)
def test_results_are_those_of_launches_to_the_bit(name: str) -> None:
    # With products by warps in both, also before and after the layers: other tiles add up in another order.
    launched, each = _run(name, replace(WARPS, cooperative="off"), times=1)
    resident, one = _run(name, replace(WARPS, cooperative="on"))
    np.testing.assert_array_equal(resident, launched)
    assert one.count("launch resident") == 2 and len(one) < 2 * len(each)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_layers_of_an_encoder_are_passes_of_one_kernel(name: str) -> None:
    found, launches = _run(name, replace(FEW, cooperative="on"))
    assert launches.count("launch resident") == 2
    graph: Graph = ENCODERS.graph_of(TINY[name])
    wanted = evaluate(graph, ENCODERS.feed_of(TINY[name]), params=ENCODERS.weights_of(graph), lift=True)["y"]
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


@pytest.mark.parametrize("tokens", [24, 40])
def test_layers_of_f32_are_passes_of_one_kernel(tokens: int) -> None:
    """Without tensor cores: factors are copied element by element, also those that other parts left near."""
    graph = bert(BertShape(4, 32, 2, 64, 64, 64, dtype=f32), batch=1, seq=tokens)
    weights = random_weights(graph)
    feeds = {
        "input_ids": np.arange(tokens).reshape(1, tokens),
        "token_type_ids": np.zeros((1, tokens), np.int64),
        "attention_mask": np.ones((1, tokens), np.int64),
    }
    (wanted,) = evaluate(graph, feeds, params=weights, lift=True).values()
    device = _device(replace(FEW, cooperative="on"))
    program = dovetail.compile(graph, target=target_of(device)).bind(weights)
    (first,), (second,) = [[*program.run(feeds).values()] for _ in range(2)]
    assert device.log.count("launch resident") == 2
    assert np.linalg.norm(first - wanted) <= 1e-6 * np.linalg.norm(wanted)
    np.testing.assert_array_equal(first, second)


def test_an_attention_by_warpgroups_is_made_by_warps() -> None:
    """The attention of a whole Whisper-like encoder multiplies out of shared memory, which no part does."""
    shape = ENCODERS.WhisperShape(ENCODERS.Layers(4, 128, 2, 128), mels=8, frames=300)
    graph: Graph = ENCODERS.graph_of(shape)
    launched = _kernels(graph, replace(FEW, multiprocessors=2, cooperative="off"))
    assert any([isinstance(s, MultiplyShared) for k in launched if not k.maps for s in everything(k.body)])
    assert any([k.counter for k in _kernels(graph, replace(FEW, multiprocessors=2, cooperative="on"))])


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_parts_have_products_without_tensor_maps_and_take_turns(name: str) -> None:
    graph: Graph = ENCODERS.graph_of(TINY[name])
    assert any(kernel.maps for kernel in _kernels(graph, replace(FEW, cooperative="off")))
    (kernel,) = [k for k in _kernels(graph, replace(FEW, cooperative="on")) if k.counter]
    assert kernel.passes == 4 and not kernel.maps
    parts = [s for s in kernel.body if isinstance(s, SubGrid)]
    products = [p for p in parts if any(isinstance(s, MultiplyMatrices) for s in everything(p.body))]
    assert len(products) >= 4 and max(part.blocks for part in parts) > 2 * FEW.multiprocessors


@cache
def _plan(name: str) -> Plan:
    """The plan of a network at its whole size; waits of the device do not change it."""
    module = DECODE if name in DECODE.SHAPES else ENCODERS
    graph: Graph = module.step_graph(module.SHAPES[name]) if module is DECODE else module.graph_of(module.SHAPES[name])
    return dovetail.compile(graph, target=target_of(_device(WHOLE))).plan


def _choice(name: str, **figures: float) -> Residency:
    """What is chosen on an H200 whose waits are others."""
    found = residency_of(_plan(name), with_timings(WHOLE, "launches", **figures))
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "resident"),
    [("qwen3_0.6b", True), ("llama_1b", True), ("gpt2", True), ("vit_base", False), ("whisper_base", False)],
)
def test_the_lower_estimate_decides_and_both_are_told(name: str, resident: bool) -> None:
    """As measured on an H200: passes of one kernel win for one token, and launches for many."""
    found = _choice(name)
    assert found.launched_seconds is not None and found.resident_seconds is not None
    assert (found.refused is None) == resident == (found.resident_seconds < found.launched_seconds)
    taken = {row.name: row for row in found.rows}
    assert taken["resident"].taken == resident and taken["launches"].taken != resident
    assert all(row.seconds for row in taken.values())
    assert len(found.steps) > 2 * found.passes
    if not resident:
        assert taken["resident"].condition == "resident_is_faster" and "µs" in taken["resident"].expected


@pytest.mark.parametrize("name", ["gpt2", "whisper_base"])
def test_kernels_of_whole_networks_are_written(name: str) -> None:
    """As passes of one kernel and as launches."""
    made = [made for _, kernels in steps_of(_plan(name), device=WHOLE) for made in kernels or ()]
    assert any([one.kernel.counter for one in made]) == (name == "gpt2")
    assert all([f"@{one.kernel.name}(" in one.text for one in made])


@pytest.mark.slow
def test_figures_of_the_device_decide() -> None:
    assert _choice("gpt2", message=1e-6).refused is not None
    assert _choice("vit_tiny", message=1e-7, barrier=1e-7, arrival=1e-7).refused is None
    assert _choice("llama_1b", dependent_launch=1e-7).refused is not None
    assert _choice("qwen3_0.6b", message=1.01e-6).refused is None
    assert _choice("qwen3_0.6b", message=1.01e-6, hidden=0.0).refused is not None


@pytest.mark.slow
def test_a_kernel_that_loses_is_not_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call would take longer."""

    def composed(*_: Any) -> None:
        raise AssertionError("composed")

    monkeypatch.setattr(PersistentRuns, "_composed", composed)
    assert _choice("vit_base").refused is not None
    with pytest.raises(AssertionError, match="composed"):
        _choice("llama_1b")

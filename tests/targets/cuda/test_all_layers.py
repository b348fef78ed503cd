"""All layers are passes of one kernel: what they share comes before them, the last pass may end early, and it runs what
follows the layers."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Value, library, ops
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import GridBarrier, Prefetch, Statement, SubGrid, When
from dovetail.kernels.loops.persistent.kernel import NEXT
from dovetail.kernels.loops.persistent.passes import IN_FIRST, part_in, starts_late
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.launch_fusion.footprints import Footprints
from dovetail.targets.gpu.persistent.repetition import Repetition
from dovetail.targets.gpu.persistent.shared_first import in_order, shared_first
from dovetail.targets.gpu.steps import locations_of
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda import lockstep
from tests.targets.cuda.simulated import SimulatedDriver, drawn_for, target_of
from tests.targets.cuda.test_decode import DECODE, SHAPES
from tests.targets.cuda.test_resident_encoders import ENCODERS, TINY

WHOLE = replace(H200, cluster=8, bulk_copies=True, dependent_intensity=inf, cooperative="on")
FEW = replace(WHOLE, multiprocessors=4)
COPYING = replace(FEW, copying_warp=True)
DEVICES = {
    "small_copies": replace(FEW, bulk_copies=False),
    "bulk_copies": FEW,
    "warp": COPYING,
    "paced": replace(COPYING, bytes_per_cycle=18.75),
    "some_fit": replace(COPYING, shared_bytes=52 << 10),
}


def _model(count: int, width: int = 256) -> Graph:
    """Layers whose input is computed, and after them a norm of the last sum, which no other step reads, and a head."""
    x: Value = ops.tanh(input("x", bf16[1, width]))
    for layer in range(count):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[width]), eps=1e-6)
        inner = library.swiglu(normed, param(f"gate{layer}", bf16[width, 64]), param(f"up{layer}", bf16[width, 64]))
        x = x + inner @ param(f"w{layer}", bf16[64, width])
    normed = library.rms_norm(x, param("gain", bf16[width]), eps=1e-6)
    return Graph.of({"y": normed @ param("head", bf16[width, 48])})


def _plan(graph: Graph, description: GpuDevice) -> Plan:
    device = SimulatedDriver()
    device.description = description
    return dovetail.compile(graph, target=target_of(device)).plan


def _made(plan: Plan, description: GpuDevice) -> list[GpuKernel]:
    return [made for _, kernels in steps_of(plan, device=description) for made in kernels or ()]


def _run(graph: Graph, description: GpuDevice) -> tuple[Array, list[str]]:
    drawn = drawn_for(graph)
    x = {"x": drawn.pop("x")}
    device = SimulatedDriver()
    device.description = description
    runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda: device).bind(drawn)
    found = [runner.run(x)["y"] for _ in range(2)]
    np.testing.assert_array_equal(found[0], found[1])
    return found[0], [line for line in device.log if line.startswith("launch ")]


def _is_near(graph: Graph, found: Array) -> None:
    drawn = drawn_for(graph)
    wanted = evaluate(graph, {"x": drawn.pop("x")}, params=drawn, lift=True)["y"]
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "launches"),
    [
        # A mask, the angles of rotations with the row of an embedding, the layers with the last norm, a head.
        ("qwen3_0.6b", 4),
        ("llama_1b", 4),
        # A mask, the embedding, the first product, the layers, a head with the last norm.
        ("gpt2", 5),
    ],
)
def test_every_layer_of_a_decoder_is_a_pass(name: str, launches: int) -> None:
    graph: Graph = DECODE.step_graph(replace(DECODE.SHAPES[name], layers=4))
    every = _made(_plan(graph, WHOLE), WHOLE)
    (kernel,) = [made.kernel for made in every if made.kernel.counter]
    assert kernel.passes == 4 and len(every) == launches


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_layer_of_an_encoder_is_a_pass(name: str) -> None:
    device = replace(WHOLE, multiprocessors=4, dependent_intensity=32.0)
    every = _made(_plan(ENCODERS.graph_of(TINY[name]), device), device)
    (kernel,) = [made.kernel for made in every if made.kernel.counter]
    assert kernel.passes == 4


def _order(plan: Plan) -> list[int]:
    launched = steps_of(plan, device=replace(WHOLE, cluster=0))
    return shared_first([(step, kernels or ()) for step, kernels in launched], Footprints(plan, locations_of(plan)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_what_layers_share_comes_before_them(name: str) -> None:
    plan = _plan(DECODE.step_graph(replace(SHAPES[name], layers=4)), WHOLE)
    order, steps = _order(plan), plan.phase("run")
    assert sorted(order) == [*range(len(steps))]
    names = [steps[number].value.op.name for number in order]
    assert "less_equal" in names[:2] and names.index("less_equal") < [s.value.op.name for s in steps].index(
        "less_equal"
    )
    rest = [number for number in order if steps[number].value.op.name != "less_equal"]
    assert rest == sorted(rest) or name != "gpt2", "nothing else of it is read by many steps"


def test_what_needs_a_step_that_stays_stays_too() -> None:
    x = library.rms_norm(ops.tanh(input("x", bf16[1, 64])) @ param("w", bf16[64, 64]), param("g", bf16[64]), eps=1e-6)
    read = {f"y{n}": x @ param(f"w{n}", bf16[64, 64 + 8 * n]) for n in range(4)}
    order = _order(make_plan(Graph.of(read), target=CLAIMS))
    assert order == sorted(order)


def test_kernels_that_move_are_those_of_the_step_that_they_come_before() -> None:
    plan = make_plan(_model(3), target=CLAIMS)
    steps = [*plan.phase("run")][:4]
    kernels: list[Any] = ["map", "gather", "norm", "product"]
    moved: list[Any] = [(steps[3], (kernels[3],)), (steps[0], None), (steps[1], (kernels[1],)), (steps[2], ())]
    found = in_order(moved, [3, 0, 1, 2], steps)
    assert [k for _, k in found] == [None, (kernels[3], kernels[1]), (), None]
    assert [step for step, _ in found] == steps


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DEVICES)
def test_the_last_pass_runs_what_follows_the_layers(name: str) -> None:
    graph, device = _model(5), DEVICES[name]
    (made,) = _made(make_plan(graph, target=CLAIMS), device)[-1:]
    parts = [s for s in made.kernel.body if part_in(s) is not None]
    assert made.kernel.passes >= 5 and any(starts_late(s) for s in parts)
    found, launches = _run(graph, device)
    launched, each = _run(graph, replace(device, cooperative="off"))
    np.testing.assert_array_equal(found, launched)
    assert launches.count("launch resident") == 2 and len(launches) < len(each) / 2
    _is_near(graph, found)


@pytest.mark.exhaustive
def test_a_warp_that_copies_late_finds_the_memory_of_the_last_parts_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep.Machine, "copies_late", True)
    graph = _model(5)
    for blocks in (4, 40):
        _is_near(graph, _run(graph, replace(COPYING, multiprocessors=blocks))[0])


@pytest.mark.exhaustive
def test_a_pass_that_ends_early_waits_at_the_barriers_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where blocks send nothing, steps after the layers are launches: no pass waits at a barrier for them."""
    monkeypatch.setattr("dovetail.targets.gpu.persistent.exchange.SIZES", ())
    graph = _model(5)
    (made,) = [made for made in _made(make_plan(graph, target=CLAIMS), FEW) if made.kernel.counter]
    assert any(isinstance(s, GridBarrier) and s.number is not None for s in made.kernel.body)
    assert not any(starts_late(s) for s in made.kernel.body if part_in(s) is not None)
    found, launches = _run(graph, FEW)
    np.testing.assert_array_equal(found, _run(graph, replace(FEW, cooperative="off"))[0])
    assert launches[-1] == "launch contract"


@pytest.mark.exhaustive
def test_steps_outside_of_the_passes_have_the_kernels_of_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attention of a part has blocks that wait for more of them than a cluster has."""
    from dovetail.targets.gpu.launch_fusion import fused_launches
    from dovetail.targets.gpu.persistent import runs as resident_runs

    found = fused_launches.longest_repetition

    def fewer(keys: Any) -> Repetition | None:
        known = found(keys)
        return known and replace(known, covered=3 * known.length)

    monkeypatch.setattr(fused_launches, "longest_repetition", fewer)
    monkeypatch.setattr(resident_runs, "MOST_AFTER", 0)
    device = replace(WHOLE, multiprocessors=32)
    plan = _plan(DECODE.step_graph(replace(SHAPES["qwen3"], layers=5)), device)
    (made,) = [made for made in _made(plan, device) if made.kernel.counter]
    assert made.kernel.passes == 3
    attends = [m for m in _made(plan, device) if m.kernel.name == "attend"]
    launched = [m for m in _made(plan, replace(device, cooperative="off")) if m.kernel.name == "attend"]
    assert len(attends) == 2 and {m.text for m in attends} <= {m.text for m in launched}


@pytest.mark.exhaustive
def test_keys_of_the_next_pass_are_prefetched_in_this_one() -> None:
    """The attention is the second part of a pass: two levels before it is the pass before."""
    for description in (WHOLE, replace(WHOLE, copying_warp=True)):
        plan = _plan(DECODE.step_graph(replace(DECODE.SHAPES["qwen3_0.6b"], layers=4)), description)
        (kernel,) = [made.kernel for made in _made(plan, description) if made.kernel.counter]
        body = kernel.stream if description.copying_warp else kernel.body
        levels = [s for b in body if isinstance(b, GridBarrier) for s in b.meanwhile]
        every = [s for s in (*body, *levels) if _prefetches(s, kernel.counter)]
        first = [s for s in every if isinstance(s, When) and s.condition == IN_FIRST]
        assert len(first) == 1 and len(every) == 2
        for s in every:
            sources = {x.source.pointer for x in everything((s,)) if isinstance(x, Prefetch)}
            assert sources and all(name.startswith(NEXT) != (s in first) for name in sources)


def _prefetches(statement: Statement, counter: str) -> bool:
    """Whether a statement prefetches keys, which all passes do, not words or what the kernel after them reads."""
    every: list[Statement] = [] if isinstance(statement, GridBarrier) else [*everything((statement,))]
    asked = [s.source.pointer for s in every if isinstance(s, Prefetch)]
    return bool(asked) and counter not in asked and not any(isinstance(s, SubGrid) and s.is_rare for s in every)


@pytest.mark.slow
@pytest.mark.parametrize("dependent", [True, False])
def test_blocks_start_early_and_read_their_counter_once_the_kernels_before_have_ended(dependent: bool) -> None:
    device = replace(FEW, dependent_intensity=inf if dependent else 0.0)
    (made,) = [made for made in _made(make_plan(_model(5), target=CLAIMS), device) if made.kernel.counter]
    assert made.kernel.launch is not None and made.kernel.launch.cooperative
    assert made.kernel.launch.dependent is dependent
    text = to_ptx(made.text, "sm_90a")
    assert text.count("griddepcontrol.wait") == text.count("griddepcontrol.launch_dependents") == dependent
    if dependent:
        assert text.index("griddepcontrol.wait") < text.index("ld.relaxed.gpu.global.u64")

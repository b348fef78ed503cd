"""Kernels whose blocks stay: layers as passes of one launch, with barriers of the grid between their kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    AwaitCopies,
    Barrier,
    CopyAsync,
    CopyBulk,
    GridBarrier,
    Kernel,
    MultiplyMatrices,
    Receive,
    Statement,
    SubGrid,
    When,
)
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.driver.driver import Driver
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.persistent.repetition import Repetition, longest_repetition
from dovetail.targets.gpu.stored import from_bytes, to_bytes
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.fake_driver import FakeLibrary
from tests.targets.cuda.simulated import SimulatedDriver

FEW = replace(H200, multiprocessors=3, cluster=8, dependent_intensity=inf, cooperative="on")
BULK = replace(FEW, bulk_copies=True)


def _layers(count: int, width: int = 128) -> Graph:
    """Norms, products with few rows and a step between them that changes places."""
    x = input("x", bf16[1, width])
    for layer in range(count):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[width]), eps=1e-6)
        inner = library.swiglu(normed, param(f"gate{layer}", bf16[width, 64]), param(f"up{layer}", bf16[width, 64]))
        x = x + ops.concat(inner[:, 32:], ops.neg(inner), inner[:, :32], axis=-1) @ param(f"w{layer}", bf16[128, width])
    return Graph.of({"y": x})


def _resident(plan: Plan, device: GpuDevice = FEW) -> list[GpuKernel]:
    every = [made for _, kernels in steps_of(plan, device=device) for made in kernels or ()]
    return [made for made in every if made.kernel.counter]


def _send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks then wait at barriers of the grid."""
    monkeypatch.setattr("dovetail.targets.gpu.persistent.exchange.SIZES", ())


def _barriers(kernel: Kernel) -> list[GridBarrier]:
    return [s for s in kernel.body if isinstance(s, GridBarrier)]


@pytest.mark.slow
@pytest.mark.parametrize("sends", [True, False], ids=["words", "barriers"])
@pytest.mark.parametrize("description", [FEW, BULK], ids=["small_copies", "bulk_copies"])
def test_layers_are_passes_of_one_launch(description: GpuDevice, sends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sends:
        _send_nothing(monkeypatch)
    graph = _layers(4)
    plan = make_plan(graph, target=CLAIMS)
    (made,) = _resident(plan, description)
    assert made.kernel.passes == 3 and made.kernel.launch is not None and made.kernel.launch.cooperative
    kind = CopyBulk if description.bulk_copies else CopyAsync
    waits = [s for b in _barriers(made.kernel) for s in everything(b.meanwhile)]
    # A level that receives words starts the copies of later ones after that.
    apart = [[*everything((s,))] for s in made.kernel.body if isinstance(s, (SubGrid, When))]
    waits += [s for every in apart if not any(isinstance(x, MultiplyMatrices) for x in every) for s in every]
    assert any(isinstance(s, kind) for s in waits), "weights are on their way before the part that needs them"
    device = _is_near_the_reference(graph, plan, description)
    assert [line for line in device.log if line.startswith("launch")].count("launch resident") == 2


def test_layers_whose_blocks_take_turns_have_packed_weights_of_their_own() -> None:
    graph = _layers(4, 256)
    plan = make_plan(graph, target=CLAIMS)
    (made,) = _resident(plan)
    assert any(isinstance(s, SubGrid) and s.blocks > FEW.multiprocessors for s in made.kernel.body)
    assert made.packed
    _is_near_the_reference(graph, plan, FEW)


def _is_near_the_reference(graph: Graph, plan: Plan, description: GpuDevice) -> SimulatedDriver:
    """Two runs give the same, and it is near the reference."""
    random = np.random.default_rng(2)
    drawn: dict[str, Any] = {}
    for v in (*graph.inputs, *graph.parameters):
        shape = tuple(int(str(n)) for n in v.shape)
        # Every layer changes its input by much more than bf16 rounds.
        scale = shape[0] ** -0.5 if len(shape) == 2 else 1.0
        drawn[str(v.attrs["name"])] = (random.normal(size=shape) * scale).astype(v.dtype.numpy)
    x = {"x": drawn.pop("x")}
    device = SimulatedDriver()
    device.description = description
    runner = CudaGraph(plan, lambda: device).bind(drawn)
    wanted = evaluate(graph, x, params=drawn, lift=True)["y"]
    runs = [runner.run(x)["y"].astype(np.float64) for _ in range(2)]
    assert np.linalg.norm(runs[0] - wanted) <= 1e-2 * np.linalg.norm(wanted)
    np.testing.assert_array_equal(runs[0], runs[1])
    return device


def test_parts_keep_all_barriers_of_their_kernels_but_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The barrier of the level follows that one."""

    def count(body: Iterable[Statement]) -> int:
        every = [*everything([*body])]
        is_product = any(isinstance(s, MultiplyMatrices) for s in every)
        return sum(isinstance(s, Barrier) for s in every) if is_product else 0

    plan = make_plan(_layers(4, 1024), target=CLAIMS)
    whole = replace(FEW, multiprocessors=132)
    (made,) = _resident(plan, whole)
    # Stages of a cluster wait for each other at barriers of their own: small steps have launches of their own here.
    monkeypatch.setattr("dovetail.targets.gpu.launch_fusion.fused_launches.TURNS", 0)
    apart = steps_of(plan, device=replace(whole, cooperative="off"))
    alone = [m.kernel for _, kernels in apart for m in kernels or ()]
    last = alone[-(len(alone) // 4) :]
    parts = [s for s in made.kernel.body if isinstance(s, SubGrid)]
    pairs = [pair for part in parts if count(part.body) for pair in pairwise(part.body)]
    received = sum(isinstance(s, Receive) and isinstance(after, Barrier) for s, after in pairs)
    # Where a kernel first waits for copies, its own barrier is also for what was received.
    shared = sum(isinstance(s, Receive) and isinstance(after, AwaitCopies) for s, after in pairs)
    assert received and shared and received + shared == sum(isinstance(s, Receive) for s, _ in pairs)
    ends = sum(bool(count(part.body)) for part in parts)
    assert sum(count(part.body) for part in parts) == sum(count(k.body) for k in last) + received - ends


@pytest.mark.slow
@pytest.mark.parametrize("sends", [True, False], ids=["words", "barriers"])
@pytest.mark.parametrize("device", [FEW, BULK], ids=["small_copies", "bulk_copies"])
def test_blocks_wait_at_one_barrier_each_and_spill_nothing(
    device: GpuDevice, sends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sends:
        _send_nothing(monkeypatch)
    (made,) = _resident(make_plan(_layers(4), target=CLAIMS), device)
    text = to_ptx(made.text, "sm_90a")
    waits = [s for s in _barriers(made.kernel) if s.number is not None]
    assert text.count("red.release.gpu") == text.count("ld.acquire.gpu") == len(waits)
    assert bool(waits) != sends and ("st.relaxed.gpu" in text) == sends
    received = [s for s in everything(made.kernel.body) if isinstance(s, Receive)]
    assert text.count("trap;") == len(waits) + len(received), "no wait is for ever"
    told = assembled(made, "sm_90a", tmp_path)
    assert not spilled_bytes(told), told


def test_few_layers_and_devices_that_do_not_ask_for_it_have_none() -> None:
    assert not _resident(make_plan(_layers(2), target=CLAIMS))
    plan = make_plan(_layers(4), target=CLAIMS)
    every = [made for _, kernels in steps_of(plan, device=replace(FEW, cooperative="off")) for made in kernels or ()]
    assert not any(made.kernel.counter for made in every)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [0, 1])
def test_layers_are_launches_where_the_device_does_not_hold_all_blocks_at_once(at_once: int) -> None:
    graph = _layers(4)
    device = SimulatedDriver()
    device.description = FEW
    device.library.blocks_at_once = at_once
    random = np.random.default_rng(0)
    drawn = {
        str(v.attrs["name"]): random.normal(size=tuple(int(str(n)) for n in v.shape)).astype(v.dtype.numpy)
        for v in (*graph.inputs, *graph.parameters)
    }
    x = {"x": drawn.pop("x")}
    CudaGraph(make_plan(graph, target=CLAIMS), lambda: device).bind(drawn).run(x)
    assert ("launch resident" in device.log) == bool(at_once)


@pytest.mark.parametrize(("attribute", "value", "mode"), [(95, 1, "auto"), (95, 0, "off"), (133, 1, "off")])
def test_devices_that_share_blocks_or_cannot_start_whole_grids_have_none(attribute: int, value: int, mode: str) -> None:
    library = FakeLibrary()
    library.attributes[attribute] = value
    assert Driver(library).description.cooperative == mode


@pytest.mark.parametrize("name", ["", "CUDA_MPS_PIPE_DIRECTORY"])
def test_drivers_that_do_not_tell_of_mps_are_asked_by_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = FakeLibrary()
    del library.attributes[133]
    if name:
        monkeypatch.setenv(name, "/tmp/mps")
    assert Driver(library).description.cooperative == ("off" if name else "auto")


@pytest.mark.slow
def test_what_takes_more_arguments_than_a_driver_allows_is_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(_layers(7), target=CLAIMS)
    (whole,) = _resident(plan)
    monkeypatch.setattr("dovetail.targets.gpu.persistent.runs.ARGUMENT_BYTES", 8 * len(whole.kernel.pointers) - 8)
    halves = _resident(plan)
    assert [made.kernel.passes for made in halves] == [3, 3] and whole.kernel.passes == 6


@pytest.mark.slow
def test_passes_are_stored() -> None:
    plan = make_plan(_layers(4), target=CLAIMS)
    steps = tuple([kernels for _, kernels in steps_of(plan, device=FEW)])
    content = to_bytes(plan, steps, {made.text: "code" for kernels in steps for made in kernels or ()})
    assert content is not None
    again, _ = from_bytes(plan, content)
    (made,) = [made for kernels in again for made in kernels or () if made.kernel.counter]
    (was,) = _resident(plan)
    assert made.kernel.table == was.kernel.table and made.packed == was.packed and made.counters == was.counters


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("xabababy", Repetition(1, 2, 6)),
        ("abcabcabca", Repetition(0, 3, 10)),
        ("aaaa", Repetition(0, 1, 4)),
        ("abab", None),
        ("abcdef", None),
    ],
)
def test_the_repetition_that_covers_most(keys: str, found: Repetition | None) -> None:
    assert longest_repetition([*keys]) == found


def test_steps_on_the_host_repeat_nothing() -> None:
    assert longest_repetition([("a",), ()] * 5) is None

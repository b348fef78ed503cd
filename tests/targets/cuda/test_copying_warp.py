"""Resident kernels with a warp that starts the bulk copies of its block, and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    AwaitPhase,
    Call,
    CopyAsync,
    CopyBulk,
    ExpectBytes,
    Extent,
    Loop,
    Prefetch,
    Receive,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    When,
    mul,
)
from dovetail.kernels.loops.persistent.stream import in_turn
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda import lockstep, simulated
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.prefetched import Bytes, prefetched_bytes
from tests.targets.cuda.simulated import drawn_for
from tests.targets.cuda.test_decode import DECODE, SHAPES

APART = replace(H200, multiprocessors=4, cluster=8, dependent_intensity=inf, cooperative="on", bulk_copies=True)
COPYING = replace(APART, copying_warp=True)
PACED = replace(COPYING, bytes_per_cycle=18.75)
SMALL_ROOM = replace(COPYING, shared_bytes=48 << 10)
"""Weights of all parts do not fit at once: copies wait until those of other parts were read."""


def layers_of(count: int, width: int = 256) -> Graph:
    x = input("x", bf16[1, width])
    for layer in range(count):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[width]), eps=1e-6)
        inner = library.swiglu(normed, param(f"gate{layer}", bf16[width, 64]), param(f"up{layer}", bf16[width, 64]))
        turned = ops.concat(inner[:, 32:], ops.neg(inner), inner[:, :32], axis=-1)
        x = x + turned @ param(f"w{layer}", bf16[128, width])
    return Graph.of({"y": x})


def _resident(graph: Graph, device: GpuDevice) -> GpuKernel:
    every = steps_of(make_plan(graph, target=CLAIMS), device=device)
    (made,) = [made for _, kernels in every for made in kernels or () if made.kernel.counter]
    return made


def _runs(graph: Graph, description: GpuDevice) -> tuple[list[Array], Array]:
    """What two runs find, and the reference."""
    drawn = drawn_for(graph)
    x = {"x": drawn.pop("x")}
    device = simulated.SimulatedDriver()
    device.description = description
    runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda: device).bind(drawn)
    wanted = evaluate(graph, x, params=drawn, lift=True)["y"]
    return [runner.run(x)["y"].astype(np.float64) for _ in range(2)], wanted


def _of(kind: type[Statement], body: Sequence[Statement]) -> int:
    return sum(isinstance(s, kind) for s in everything(body))


@pytest.mark.exhaustive
@pytest.mark.parametrize("device", [COPYING, PACED, SMALL_ROOM], ids=["all_fit", "paced", "some_fit"])
def test_results_are_those_of_threads_that_copy_themselves(device: GpuDevice) -> None:
    graph = layers_of(4)
    found, wanted = _runs(graph, device)
    same, _ = _runs(graph, replace(device, copying_warp=False))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], same[0])
    assert np.linalg.norm(found[0] - wanted) <= 1e-2 * np.linalg.norm(wanted)


@pytest.mark.slow
def test_blocks_that_are_full_have_none() -> None:
    most = _resident(layers_of(4), APART).kernel.launch
    assert (
        most is not None and _resident(layers_of(4), replace(COPYING, threads_per_block=most.block + 128)).kernel.stream
    )
    full = _resident(layers_of(4), replace(COPYING, threads_per_block=most.block + 127)).kernel
    assert full.launch == most and not full.stream and _of(CopyBulk, full.body)


@pytest.mark.exhaustive
@pytest.mark.parametrize("blocks", [4, 40], ids=["all_copy", "some_copy"])
def test_a_warp_that_is_late_waits_for_no_phase_that_is_over(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks without any columns wait for nobody: they are through with all passes before their warps have started."""
    monkeypatch.setattr(lockstep.Machine, "copies_late", True)
    description = replace(COPYING, multiprocessors=blocks)
    parts = [s for s in _resident(layers_of(4), description).kernel.body if isinstance(s, SubGrid)]
    assert (max(part.blocks for part in parts) < blocks) is (blocks == 40)
    found, wanted = _runs(layers_of(4), description)
    assert np.linalg.norm(found[0] - wanted) <= 1e-2 * np.linalg.norm(wanted)


@pytest.mark.slow
def test_one_warp_starts_all_bulk_copies() -> None:
    made, before = _resident(layers_of(4), COPYING).kernel, _resident(layers_of(4), APART).kernel
    assert made.launch is not None and before.launch is not None and made.launch.block == before.launch.block + 128
    assert _of(CopyBulk, made.stream) and not _of(CopyBulk, (*made.early, *made.body)) and not before.stream
    # Copies of gains are few bytes: those who read them start them.
    assert _of(CopyAsync, made.body) == _of(CopyAsync, before.body) and not _of(CopyAsync, made.stream)


@pytest.mark.slow
def test_each_copy_waits_until_memory_has_brought_the_one_before_it() -> None:
    made = _resident(layers_of(4), PACED)
    bodies = [body for s in everything(made.kernel.stream) for body in _bodies(s)]
    pairs = [pair for body in bodies for pair in pairwise(body) if isinstance(pair[1], (CopyBulk, Prefetch))]
    every = [_of(kind, made.kernel.stream) for kind in (CopyBulk, Prefetch)]
    assert all(every) and len(pairs) == sum(every) == to_ptx(made.text, "sm_90a").count("%clock64")
    pace = round(65536 / PACED.bytes_per_cycle)
    for wait, copy in pairs:
        assert isinstance(wait, Store) and isinstance(wait.value, Call) and isinstance(copy, (CopyBulk, Prefetch))
        nbytes = Extent(copy.nbytes) if isinstance(copy, CopyBulk) else copy.nbytes
        now, cycles = wait.value.operands
        assert isinstance(now, Call) and now.op == "clock_after" and isinstance(cycles, Call) and cycles.op == "div"
        assert cycles.operands == (mul(nbytes, Extent(pace)), Extent(65536))


def test_the_last_copies_of_a_part_wait_for_those_of_the_part_before() -> None:
    """Memory brings what is on its way in any order, and blocks need the part before first."""
    part, place = ThreadIndex("block"), Tensor("weights", bf16, (2,), space="shared")
    copy = CopyBulk(place, (ZERO,), Tensor("x", bf16, (2,)), (part,), 1024, "own", ZERO)
    first = SubGrid(4, 32, 0, (ExpectBytes("before", ZERO, 1024), copy))
    second = SubGrid(4, 32, 0, (ExpectBytes("own", ZERO, 2048), copy, copy))
    one, other = in_turn((first, second))
    assert one == first and isinstance(other, SubGrid)
    assert [type(s) for s in other.body] == [ExpectBytes, CopyBulk, AwaitPhase, CopyBulk]
    wait = other.body[2]
    assert isinstance(wait, AwaitPhase) and wait.barrier == "before"
    assert in_turn((second,)) == (second,)


@pytest.mark.exhaustive
def test_words_of_each_pass_are_in_the_cache_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights have gone through it since the launch before. The blocks share the words, and ask for all of them."""
    asked = prefetched_bytes(monkeypatch)
    made = _resident(layers_of(4), COPYING)
    _runs(layers_of(4), COPYING)
    sources = {r.source for s in everything(made.kernel.body) if isinstance(s, Receive) for r in s.receipts}
    (nbytes,) = {source.strides[0] for source in sources}
    assert isinstance(nbytes, int)
    every = [at for (pointer, _), at in asked.items() if pointer == made.kernel.counter]
    assert len(every) == 4 and min(map(len, every)) > 0
    assert set().union(*every) == set(range(128, 128 + (made.kernel.passes + 1) * nbytes))
    assert not _of(Prefetch, (*_resident(layers_of(4), APART).kernel.body,))


def _without_waits(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    inner = [replace(s, body=_without_waits(s.body)) if isinstance(s, (SubGrid, When)) else s for s in body]
    return tuple([s for s in inner if not isinstance(s, AwaitPhase)])


def _bodies(s: Statement) -> list[tuple[Statement, ...]]:
    return [s.body] if isinstance(s, (Loop, When)) else []


@pytest.mark.exhaustive
def test_it_prefetches_the_keys_that_warps_would(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = prefetched_bytes(monkeypatch)
    shape = replace(SHAPES["qwen3"], layers=4)
    graph: Graph = DECODE.step_graph(shape)
    logits: list[Array] = []
    places: list[Bytes] = []
    for description in (replace(APART, multiprocessors=32), replace(COPYING, multiprocessors=32)):
        device = simulated.SimulatedDriver()
        device.description = description
        program = dovetail.compile(graph, target=simulated.target_of(device)).bind(DECODE.weights_of(graph))
        every = [made.kernel for _, ks in steps_of(program.plan, device=description) for made in ks or ()]
        (kernel,) = [kernel for kernel in every if kernel.counter]
        assert bool(_of(Prefetch, kernel.stream)) is description.copying_warp is not bool(_of(Prefetch, kernel.body))
        asked.clear()
        logits.append(program.run(DECODE.feeds_of(shape, 20))["logits"])
        places.append({(pointer, block): at for (pointer, block), at in asked.items() if pointer != kernel.counter})
    np.testing.assert_array_equal(logits[0], logits[1])
    assert places[0] and places[0] == places[1]


@pytest.mark.slow
def test_a_copy_that_does_not_wait_for_its_room_spoils_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator would see it."""
    ptx = simulated.SimulatedDriver.ptx

    def hasty(self: simulated.SimulatedDriver, made: GpuKernel) -> str:
        kernel = replace(made.kernel, stream=_without_waits(made.kernel.stream))
        assert bool(kernel.stream) is bool(_of(AwaitPhase, made.kernel.stream))
        assert not _of(AwaitPhase, kernel.stream)
        return ptx(self, replace(made, kernel=kernel))

    monkeypatch.setattr(simulated.SimulatedDriver, "ptx", hasty)
    try:
        found, wanted = _runs(layers_of(4), SMALL_ROOM)
    except AssertionError as error:
        assert "no more threads arrive than a phase has" in str(error)
        return
    assert not np.linalg.norm(found[0] - wanted) <= 1e-2 * np.linalg.norm(wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["qwen3_0.6b", "llama_1b"])
@pytest.mark.parametrize("copying_warp", [True, False], ids=["warp", "threads"])
def test_kernels_of_whole_sizes_spill_nothing(name: str, copying_warp: bool, tmp_path: Path) -> None:
    device = simulated.SimulatedDriver()
    device.description = replace(device.description, cooperative="on", copying_warp=copying_warp)
    graph: Graph = DECODE.step_graph(replace(DECODE.SHAPES[name], layers=4))
    plan = dovetail.compile(graph, target=simulated.target_of(device)).plan
    every = [made for _, kernels in steps_of(plan, device=device.description) for made in kernels or ()]
    (made,) = [made for made in every if made.kernel.counter]
    told = assembled(made, "sm_90a", tmp_path)
    assert not spilled_bytes(told) and "'setmaxnreg' ignored" not in told, told


@pytest.mark.slow
def test_threads_that_compute_have_the_registers_of_those_that_copy(tmp_path: Path) -> None:
    told = assembled(_resident(layers_of(4, 1024), replace(COPYING, multiprocessors=132)), "sm_90a", tmp_path)
    assert not spilled_bytes(told) and "'setmaxnreg' ignored" not in told, told

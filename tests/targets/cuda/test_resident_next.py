"""What the last pass of a resident kernel prefetches for the kernel after it, and shared memory of the last pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import bf16, u8
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, Call, Extent, Prefetch, When
from dovetail.kernels.loops.persistent.kernel import Room, offsets
from dovetail.kernels.loops.persistent.next import first_copies
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda import simulated
from tests.targets.cuda.prefetched import prefetched_bytes
from tests.targets.cuda.simulated import drawn_for
from tests.targets.cuda.test_copying_warp import COPYING

WIDTH, COLUMNS, LAYERS = 256, 1024, 4


def _graph() -> Graph:
    """Layers, the last of which has no other reader than a norm, and a head of more blocks than the device holds."""
    x = input("x", bf16[1, WIDTH])
    for layer in range(LAYERS):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[WIDTH]), eps=1e-6)
        inner = library.swiglu(normed, param(f"gate{layer}", bf16[WIDTH, 64]), param(f"up{layer}", bf16[WIDTH, 64]))
        x = x + inner @ param(f"w{layer}", bf16[64, WIDTH])
    x = library.rms_norm(x, param("gain", bf16[WIDTH]), eps=1e-6)
    return Graph.of({"y": x @ param("head", bf16[WIDTH, COLUMNS])})


def _made(device: GpuDevice) -> tuple[GpuKernel, GpuKernel]:
    """The resident kernel and the one after it."""
    every = [m for _, kernels in steps_of(make_plan(_graph(), target=CLAIMS), device=device) for m in kernels or ()]
    at = next(i for i, m in enumerate(every) if m.kernel.counter)
    return every[at], every[at + 1]


def test_the_last_pass_prefetches_what_the_next_kernel_copies_first(monkeypatch: pytest.MonkeyPatch) -> None:
    resident, head = _made(COPYING)
    copies = first_copies(head.kernel)
    assert copies is not None and copies.grid > COPYING.multiprocessors
    pointer = next(n for n, packed in resident.packed.items() if packed == head.packed[copies.pointer])
    asked, graph = prefetched_bytes(monkeypatch), _graph()
    given = drawn_for(graph)
    x = {"x": given.pop("x")}
    device = simulated.SimulatedDriver()
    device.description = COPYING
    runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda: device).bind(given)
    found = runner.run(x)["y"].astype(np.float64)
    wanted = evaluate(graph, x, params=given, lift=True)["y"]
    assert np.linalg.norm(found - wanted) <= 1e-2 * np.linalg.norm(wanted)
    own = {block: places for (name, block), places in asked.items() if name == pointer}
    assert {*own} == {*range(COPYING.multiprocessors)}
    # Blocks of one number prefetch for each other: nothing twice, and first of all what the first block starts with.
    assert sum(map(len, own.values())) == len(set[int]().union(*own.values()))
    start = min(map(min, own.values()))
    assert {*range(start, start + copies.copy.nbytes)} <= own[0]


def test_nothing_of_it_is_prefetched_where_no_warp_copies_or_l2_is_small() -> None:
    def of_next(device: GpuDevice) -> int:
        resident, head = _made(device)
        copies = first_copies(head.kernel)
        names = [n for n, p in resident.packed.items() if copies is not None and p == head.packed.get(copies.pointer)]
        every = [s for s in everything(resident.kernel.stream) if isinstance(s, Prefetch)]
        return sum(s.source.pointer in names for s in every)

    assert of_next(COPYING) > 0
    assert of_next(replace(COPYING, copying_warp=False)) == of_next(replace(COPYING, l2_bytes=0)) == 0


def test_passes_before_the_last_one_prefetch_nothing_of_it() -> None:
    resident, _ = _made(COPYING)
    counter = resident.kernel.counter
    asked = {s: [x.source.pointer for x in everything([s]) if isinstance(x, Prefetch)] for s in resident.kernel.stream}
    whens = [s for s, pointers in asked.items() if pointers and counter not in pointers]
    passes = [s.condition.operands[1] for s in whens if isinstance(s, When) and isinstance(s.condition, Call)]
    assert len(passes) == len(whens) and {*passes} == {Extent(resident.kernel.passes - 1)}


def _room(name: str, slots: set[int], last: set[int]) -> Room:
    return Room(Alloc(name, u8, 1024, "shared"), frozenset(slots), frozenset(last))


def test_parts_after_all_layers_take_the_memory_of_what_the_last_pass_does_not_run() -> None:
    skipped, ran = _room("skipped", {1, 2}, set()), _room("ran", {3}, {3})
    assert offsets([skipped, ran, _room("after", set(), {1, 2})], 0, 1024) == {"skipped": 0, "ran": 0, "after": 0}
    assert offsets([skipped, ran, _room("after", set(), {2, 3})], 0, 1024) is None

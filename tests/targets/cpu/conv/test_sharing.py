"""Tiles for many threads: every thread has one, and no bit changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.conv.policy import shared_parts
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.cpu.select import TABLE
from tests.kernels.convolving import WIDE, around, network, normal, on_a_machine_of, params_of

THREADS = 16
LAYERS = {
    "winograd 4×4": around((1, 64, 56, 56), 64),
    "winograd 2×2": around((1, 256, 14, 14), 256),
    "pointwise_packed": network((1, 1024, 14, 14), (256, 1024, 1, 1)),
    "few_pixels": around((1, 128, 56, 56), 128, strides=(2, 2)),
    "few_pixels_kxk": around((1, 512, 7, 7), 256),
}
"""Layers of common networks that few tiles would serve, by the kernel that AVX-512 has for them."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "graph"), LAYERS.items(), ids=LAYERS)
def test_every_thread_has_a_tile(name: str, graph: Graph) -> None:
    found = {threads: tiles_of(graph, replace(WIDE, threads=threads)) for threads in (1, THREADS)}
    assert found[1][0] == found[THREADS][0] == name, "threads do not decide which kernel serves"
    assert found[1][1] < THREADS and found[THREADS][1] >= 0.85 * THREADS


@pytest.mark.slow
@pytest.mark.parametrize("graph", LAYERS.values(), ids=LAYERS)
def test_bits_do_not_depend_on_the_threads_of_the_device(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = [size for size in graph.inputs[0].shape if isinstance(size, int)]
    params, x = params_of(graph), normal(*shape)
    results: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = []
    for threads in (1, THREADS):
        on_a_machine_of(replace(WIDE, threads=threads), monkeypatch)
        (found,) = NativeGraph(make_plan(graph, target=CPU), threads=2).bind(params).run({"x": x}).values()
        results.append(found)
    assert (results[0].view(np.uint32) == results[1].view(np.uint32)).all()


def test_parts_are_limited_by_what_they_hold() -> None:
    many = CpuDevice(512, 32, threads=64)
    assert shared_parts(2, 1, 4, 3, many) == 3, "no part is smaller than it may be"
    assert shared_parts(2, 1, 32, 30, many) == 2, "enough tiles stay as they are"
    assert shared_parts(2, 1, 40, 30, many) == 3, "80 tiles would leave 48 of 128 turns idle"
    assert shared_parts(2, 8, 4, 30, many) == 2, "images are shared too"
    assert shared_parts(1, 1, 4, 30, CpuDevice(512, 32)) == 1


def tiles_of(graph: Graph, device: CpuDevice) -> tuple[str, int]:
    """The kernel of a layer, and its tiles."""
    plan = make_plan(graph, target=CPU)
    locations = TensorLocations(plan.locate, set(), False, target=loops_of(device))
    step = plan.phase("run")[-1]
    job = TABLE.select(step, locations, device, BUILT_IN)
    assert job is not None and isinstance(job.tiled.tiles, int)
    (name,) = [row.name for row in TABLE.considered(step, locations, device, BUILT_IN) if row.taken]
    return name, job.tiled.tiles

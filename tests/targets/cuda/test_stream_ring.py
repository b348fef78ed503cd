"""Products with few rows whose weights do not fit shared memory: rings of stages, filled by bulk copies."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.kernels.gpu.gemv.packed_matrix import Staged
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import AwaitPhase, CopyAsync, CopyBulk, GridBarrier, Kernel, Loop
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.simulated import SimulatedDriver

LAUNCHED = replace(H200, multiprocessors=8, cluster=8, dependent_intensity=inf, bulk_copies=True, cooperative="off")
RESIDENT = replace(LAUNCHED, cooperative="on")
WIDTH, INNER = 1920, 192


def _layers(count: int, rows: int = 1) -> Graph:
    """Each block has 24 columns of gates and 24 of others: 180 KB, which do not fit for two blocks at once."""
    x = input("x", bf16[rows, WIDTH])
    for layer in range(count):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[WIDTH]), eps=1e-6)
        gate, up = (param(f"{name}{layer}", bf16[WIDTH, INNER]) for name in ("gate", "up"))
        x = x + library.swiglu(normed, gate, up) @ param(f"down{layer}", bf16[INNER, WIDTH])
    return Graph.of({"y": x})


def _drawn(graph: Graph) -> dict[str, Any]:
    random = np.random.default_rng(11)
    found: dict[str, Any] = {}
    for v in (*graph.inputs, *graph.parameters):
        shape = tuple(int(str(n)) for n in v.shape)
        scale = shape[0] ** -0.5 if len(shape) == 2 and v.attrs["name"] != "x" else 1.0
        found[str(v.attrs["name"])] = (random.normal(size=shape) * scale).astype(v.dtype.numpy)
    return found


def _kernels(plan: Plan, device: Any) -> list[Kernel]:
    return [made.kernel for _, several in steps_of(plan, device=device) for made in several or ()]


def _rings(kernel: Kernel) -> list[Loop]:
    loops = [s for s in everything(kernel.body) if isinstance(s, Loop) and s.variable.startswith("round")]
    return [s for s in loops if any(isinstance(x, CopyBulk) for x in everything(s.body))]


def _run(graph: Graph, description: Any, runs: int) -> list[Any]:
    device = SimulatedDriver()
    device.description = description
    drawn = _drawn(graph)
    x = {"x": drawn.pop("x")}
    runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda: device).bind(drawn)
    return [runner.run(x)["y"] for _ in range(runs)]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
def test_a_ring_gives_what_the_graph_means(rows: int) -> None:
    graph = _layers(1, rows)
    assert any(_rings(kernel) for kernel in _kernels(make_plan(graph, target=CLAIMS), LAUNCHED))
    drawn = _drawn(graph)
    x = {"x": drawn.pop("x")}
    wanted = evaluate(graph, x, params=drawn, lift=True)["y"]
    (found,) = _run(graph, LAUNCHED, 1)
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


@pytest.mark.exhaustive
def test_passes_go_on_with_the_phases_of_a_ring() -> None:
    """Stages of a ring are filled an odd number of times in a pass here: phases differ from pass to pass."""
    graph = _layers(4)
    (kernel,) = [k for k in _kernels(make_plan(graph, target=CLAIMS), RESIDENT) if k.counter]
    turns = [s.turns for s in everything(kernel.body) if isinstance(s, AwaitPhase)]
    assert _rings(kernel) and any(n > 1 and n % 2 for n in turns), turns
    (wanted,) = _run(graph, LAUNCHED, 1)
    for found in _run(graph, RESIDENT, 2):
        np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.slow
def test_the_first_stages_are_on_their_way_levels_before() -> None:
    """Copies that a barrier counts may start while other parts run; those that threads await may not."""
    (kernel,) = [k for k in _kernels(make_plan(_layers(4), target=CLAIMS), RESIDENT) if k.counter]
    names = {s.source.pointer for ring in _rings(kernel) for s in everything(ring.body) if isinstance(s, CopyBulk)}
    levels = [s for s in kernel.body if isinstance(s, GridBarrier)]
    ahead = {s.source.pointer for b in levels for s in everything(b.meanwhile) if isinstance(s, CopyBulk)}
    assert names and {n.removeprefix("next.") for n in ahead} >= names
    assert not any(isinstance(s, CopyAsync) for ring in _rings(kernel) for s in everything(ring.body))


def test_weights_are_packed_in_the_order_in_which_blocks_read_them() -> None:
    w = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)
    found = Staged(3, 4, padding=1)(w)
    assert found.shape == (2, 2, 3, 5)
    for block in range(2):
        for stage in range(2):
            for column in range(3):
                part = w[4 * stage : 4 * stage + 4, 3 * block + column]
                np.testing.assert_array_equal(found[block, stage, column, :4], part)
    assert not found[..., 4].any()


@pytest.mark.slow
def test_rings_assemble_without_spills(tmp_path: Path) -> None:
    x = input("x", bf16[1, 2048])
    value = library.swiglu(x, param("g", bf16[2048, 8192]), param("u", bf16[2048, 8192]))
    device = replace(LAUNCHED, multiprocessors=132)
    plan = make_plan(Graph.of({"y": value}), target=CLAIMS)
    (made,) = [made for _, several in steps_of(plan, device=device) for made in several or ()]
    assert _rings(made.kernel)
    told = assembled(made, "sm_90a", tmp_path)
    assert not spilled_bytes(told), told

"""RMS norms between two products: one leaves squares, the other scales its sums, and no kernel norms rows."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, bf16, f16
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm import tile as tiles
from dovetail.kernels.gpu.gemm.narrow_results import KEPT
from dovetail.kernels.gpu.gemm.scaled_rows import ROWS, SQUARES
from dovetail.kernels.gpu.gemm.tile import BlockTile
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.simulated import SimulatedDriver

DEVICE = replace(H200, cooperative="off", multiprocessors=4, cluster=8)
EARLY = replace(DEVICE, dependent_intensity=inf)
TILE = BlockTile(64, 64, 4, 1, 2, by_warpgroup=True)
PAIR = replace(TILE, cluster=2)
BOTH = BlockTile(64, 128, 4, 1, 2, by_warpgroup=True)


def rows_of(rows: int | str, depth: int, width: int, dtype: DType = bf16) -> Value:
    """A product and a residual."""
    residual = input("residual", dtype[rows, width])
    return library.matmul_add(input("x", dtype[rows, depth]), param("first", dtype[depth, width]), residual)


def normed(x: Value) -> Value:
    return library.rms_norm(x, param("gain", x.dtype[x.shape[-1]]), eps=1e-6)


def between(rows: int | str, depth: int, width: int, columns: int, dtype: DType = bf16) -> Value:
    return normed(rows_of(rows, depth, width, dtype)) @ param("second", dtype[width, columns])


def _kernels(outputs: dict[str, Value], device: GpuDevice) -> list[GpuKernel]:
    plan = make_plan(Graph.of(outputs), target=CLAIMS)
    return [made for _, several in steps_of(plan, device=device) for made in several or ()]


def _drawn(graph: Graph) -> dict[str, Any]:
    """Rows of the residual are of many sizes, so that the squares of other rows would be seen."""
    random, found = np.random.default_rng(5), dict[str, Any]()
    for v in (*graph.inputs, *graph.parameters):
        name, shape = str(v.attrs["name"]), tuple(int(str(n).replace("n", "70")) for n in v.shape)
        content = random.normal(size=shape) * (shape[0] ** -0.5 if len(shape) == 2 and v in graph.parameters else 1.0)
        if name == "residual":
            content *= 2.0 ** (np.arange(shape[0]) % 13 - 6)[:, None]
        found[name] = content.astype(v.dtype.numpy)
    return found


def _run(graph: Graph, device: GpuDevice, drawn: dict[str, Any]) -> dict[str, Array]:
    simulated = SimulatedDriver()
    simulated.description = device
    feeds = {name: drawn[name] for name in map(str, (v.attrs["name"] for v in graph.inputs))}
    params = {name: x for name, x in drawn.items() if name not in feeds}
    runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda: simulated).bind(params)
    runner.run(feeds)
    return {name: np.asarray(x) for name, x in runner.run(feeds).items()}


def _judged(outputs: dict[str, Value], device: GpuDevice) -> None:
    """Each row is as near to float64 as where every step is rounded, or nearly so."""
    graph = Graph.of(outputs)
    drawn = _drawn(graph)
    inputs = {str(v.attrs["name"]): drawn[str(v.attrs["name"])] for v in graph.inputs}
    params = {name: x for name, x in drawn.items() if name not in inputs}
    exact, rounded = evaluate(graph, inputs, params=params, lift=True), evaluate(graph, inputs, params=params)
    for name, found in _run(graph, device, drawn).items():
        error, usual = (
            np.linalg.norm(np.asarray(y, np.float64) - exact[name], axis=-1) for y in (found, rounded[name])
        )
        assert (error <= 2 * usual).all(), name


@pytest.mark.parametrize(("rows", "device"), [(64, DEVICE), (100, EARLY)], ids=["in_order", "dependent"])
def test_products_leave_squares_and_scale_sums(rows: int, device: GpuDevice) -> None:
    outputs = {"y": between(rows, 64, 136, 72)}
    with patch.object(tiles, "PIPELINED_TILES", (TILE,)):
        first, second = _kernels(outputs, device)
        assert set(first.workspace) == set(second.workspace) == {ROWS, SQUARES}
        assert {ROWS, SQUARES} <= set(first.kernel.written) and second.kernel.written == ("y0",)
        _judged(outputs, device)


def test_blocks_of_a_cluster_and_several_streams() -> None:
    """The second product reads what all blocks of the first one left, whichever tiles either has."""
    x = rows_of(128, 64, 72)
    gate, up = param("gate", bf16[72, 72]), param("up", bf16[72, 72])
    outputs = {"x": x, "y": library.swiglu(normed(x), up, gate)}
    with patch.object(tiles, "PIPELINED_TILES", (PAIR, BOTH)):
        first, second = _kernels(outputs, EARLY)
        assert first.launch.cluster == 2 and second.kernel.early
        _judged(outputs, EARLY)


def test_scaled_sums_of_several_tiles_are_written_at_once() -> None:
    """A block that keeps the sums of a tile for results during the next one has no scales of their rows any more."""
    device, rows, width, columns = replace(DEVICE, multiprocessors=1), 128, 512, 136
    plain = {"y": input("x", bf16[rows, width]) @ param("second", bf16[width, columns])}
    outputs = {"y": between(rows, 64, width, columns)}

    def is_late(made: GpuKernel) -> bool:
        return any(isinstance(s, Alloc) and s.pointer == KEPT for s in everything(made.kernel.body))

    with patch.object(tiles, "PIPELINED_TILES", (BOTH,)):
        (alone,), (_, second) = _kernels(plain, device), _kernels(outputs, device)
        assert is_late(alone) and not is_late(second) and ROWS in second.workspace
        _judged(outputs, device)


def test_rows_may_be_known_in_a_run_alone() -> None:
    outputs = {"y": between("n", 64, 72, 72)}
    with patch.object(tiles, "PIPELINED_TILES", (TILE,)):
        assert all(ROWS in made.workspace for made in _kernels(outputs, EARLY))
        _judged(outputs, EARLY)


REFUSED = {
    "a reader besides": lambda: {"y": between(64, 64, 72, 72), "n": normed(rows_of(64, 64, 72))},
    "f16": lambda: {"y": between(64, 64, 72, 72, f16)},
    "few rows": lambda: {"y": between(8, 64, 72, 72)},
    "no product before": lambda: {"y": normed(input("x", bf16[64, 72])) @ param("second", bf16[72, 72])},
    "a part of the norm": lambda: {
        "y": ops.slice_(normed(rows_of(64, 64, 144)), axis=-1, start=0, stop=72) @ param("second", bf16[72, 72])
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_norms_keep_their_kernels(name: str) -> None:
    """Rows without their scale are of any size, which f16 does not hold, and others read what is normed."""
    for made in _kernels(REFUSED[name](), EARLY):
        assert not made.workspace.keys() & {ROWS, SQUARES}


def test_whole_sizes_have_registers_for_it(tmp_path: Path) -> None:
    """Those of a prompt of Qwen3-0.6B."""
    graph = {"y": between(512, 2048, 1024, 4096)}
    for made in _kernels(graph, replace(H200, dependent_intensity=inf, cluster=8, cooperative="off")):
        assert {ROWS, SQUARES} <= made.workspace.keys()
        assert spilled_bytes(assembled(made, "sm_90a", tmp_path)) == 0

"""Constants that rows have in shared memory before the kernels before them have ended."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import DType, bf16, f16, f32
from dovetail.ir.leaf import input, param
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import CopyAsync
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.simulated import SimulatedDriver

EARLY = replace(H200, cluster=8, dependent_intensity=inf)


def _normed(rows: int, width: int, dtype: DType, gain: Value | None = None) -> Graph:
    x = input("x", dtype[rows, width])
    gain = param("gain", dtype[width]) if gain is None else gain
    return Graph.of({"y": library.layer_norm(x, gain, param("shift", dtype[width]), eps=1e-5)})


def _kernel(graph: Graph, device: GpuDevice = EARLY) -> GpuKernel:
    ((_, made),) = kernels_of(make_plan(graph, target=CLAIMS), device=device)
    return made


def _copied(made: GpuKernel) -> set[str]:
    """The operands that a kernel copies early."""
    sources = [s.source.pointer for s in everything(made.kernel.early) if isinstance(s, CopyAsync)]
    return {str(made.bindings[name].attrs["name"]) for name in sources}


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "width", "dtype"), [(16, 384, f16), (70, 200, bf16), (3, 4096, f32)])
def test_a_norm_has_its_gains_early(rows: int, width: int, dtype: DType) -> None:
    graph = _normed(rows, width, dtype)
    assert _copied(_kernel(graph)) == {"gain", "shift"}
    random = np.random.default_rng(5)
    feeds = {"x": random.normal(size=(rows, width)).astype(dtype.numpy)}
    params = {name: random.normal(size=width).astype(dtype.numpy) for name in ("gain", "shift")}
    wanted = evaluate(graph, feeds, params=params, lift=True)["y"]
    device = SimulatedDriver()
    device.description = EARLY
    runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda: device).bind(params)
    for _ in range(2):
        found = runner.run(feeds)["y"].astype(np.float64)
        assert np.linalg.norm(found - wanted) <= 8e-3 * np.linalg.norm(wanted)


def test_what_a_run_is_given_is_not_read_early() -> None:
    assert _copied(_kernel(_normed(16, 384, f16, input("gain", f16[384])))) == {"shift"}


def test_many_rows_and_kernels_that_start_in_order_have_none() -> None:
    assert not _kernel(_normed(4096, 384, f16)).kernel.early
    assert not _kernel(_normed(16, 384, f16), replace(EARLY, dependent_intensity=0.0)).kernel.early


def test_they_assemble_without_spills(tmp_path: Path) -> None:
    told = assembled(_kernel(_normed(16, 384, f16)), "sm_90a", tmp_path)
    assert not spilled_bytes(told), told

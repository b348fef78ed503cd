"""Products with few rows of an RMS norm: gains multiply rows, and scales multiply sums."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, bf16, f16
from dovetail.ir.leaf import input, param
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, Barrier, ScaleMatrices
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.simulated import SimulatedDriver, drawn_for, run_simulated, target_of

BULK = replace(H200, dependent_intensity=inf, bulk_copies=True, cluster=8, cooperative="off")


def norm_of(x: Value, dtype: DType = bf16, gain: Value | None = None) -> Value:
    width = int(str(x.shape[-1]))
    return library.rms_norm(x, param("gain", dtype[width]) if gain is None else gain, eps=1e-6)


def _kernels(plan: Plan, device: GpuDevice) -> list[GpuKernel]:
    return [made for _, several in steps_of(plan, device=device) for made in several or ()]


def _norms_rows(made: GpuKernel) -> bool:
    return any(isinstance(s, ScaleMatrices) for s in everything(made.kernel.body))


@pytest.mark.parametrize("columns", [8 * 20, 16 * 20, 24 * 20], ids=["folded", "even", "odd"])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8])
def test_rows_of_any_size_are_as_near_as_those_normed_first(rows: int, columns: int) -> None:
    """Every row has a size of its own, and so have its two halves: squares of others, or of a part, would be seen."""
    x = input("x", bf16[rows, 512])
    graph = Graph.of({"y": norm_of(x) @ param("w", bf16[512, columns])})
    device = replace(BULK, multiprocessors=20)
    (made,) = _kernels(make_plan(graph, target=CLAIMS), device)
    assert _norms_rows(made)
    drawn = drawn_for(graph)
    sizes = 2.0 ** np.arange(-3 * rows, 3 * rows, 6)[:, None] * np.where(np.arange(512) % 32 < 16, 1, 3)
    drawn["x"] = (drawn["x"].astype(np.float64) * sizes).astype(bf16.numpy)
    found = run_simulated(graph, device, drawn).astype(np.float64)
    exact = evaluate(graph, {"x": drawn["x"]}, params={n: drawn[n] for n in ("gain", "w")}, lift=True)["y"]
    normed = evaluate(Graph.of({"y": norm_of(x)}), {"x": drawn["x"]}, params={"gain": drawn["gain"]}, lift=True)["y"]
    first = (normed.astype(bf16.numpy).astype(np.float64) @ drawn["w"].astype(np.float64)).astype(bf16.numpy)
    for row in range(rows):
        error, usual = (np.linalg.norm(y.astype(np.float64)[row] - exact[row]) for y in (found, first))
        assert error <= 1.25 * usual


def test_streams_share_the_scale_of_their_row() -> None:
    x = input("x", bf16[1, 512])
    gate, up = param("gate", bf16[512, 480]), param("up", bf16[512, 480])
    graph = Graph.of({"y": library.swiglu(norm_of(x), gate, up)})
    device = replace(BULK, multiprocessors=20)
    assert [_norms_rows(made) for made in _kernels(make_plan(graph, target=CLAIMS), device)] == [True]
    drawn = drawn_for(graph)
    drawn["x"] = (drawn["x"].astype(np.float64) * 8).astype(bf16.numpy)
    found = run_simulated(graph, device, drawn).astype(np.float64)
    params = {name: value for name, value in drawn.items() if name != "x"}
    exact = evaluate(graph, {"x": drawn["x"]}, params=params, lift=True)["y"]
    assert np.linalg.norm(found - exact) <= 2**-7 * np.linalg.norm(exact)


def test_no_thread_waits_for_a_norm_and_gains_come_with_weights(tmp_path: Path) -> None:
    x = input("x", bf16[1, 1024])
    graph = Graph.of({"y": norm_of(x) @ param("w", bf16[1024, 4096])})
    (made,) = _kernels(make_plan(graph, target=CLAIMS), BULK)
    # One for rows and weights, one for the sums of warps, and one before shared memory is used again.
    assert sum(isinstance(s, Barrier) for s in everything(made.kernel.body)) == 3
    assert "gain" in made.kernel.constants
    told = assembled(made, "sm_90a", tmp_path)
    assert not spilled_bytes(told), told


@pytest.mark.parametrize("kind", ["f16", "kept", "input_gain", "small_copies"])
def test_others_norm_rows_first(kind: str) -> None:
    """Rows of f16 without their scale may be too large, others read what is normed, or gains come with no copies."""
    dtype = f16 if kind == "f16" else bf16
    x, w = input("x", dtype[1, 512]), param("w", dtype[512, 480])
    normed = norm_of(x, dtype, input("gain", dtype[512]) if kind == "input_gain" else None)
    outputs = {"y": normed @ w} | ({"z": ops.relu(normed)} if kind == "kept" else {})
    device = replace(BULK, multiprocessors=20, bulk_copies=kind != "small_copies")
    assert not any(map(_norms_rows, _kernels(make_plan(Graph.of(outputs), target=CLAIMS), device)))


def test_layers_that_repeat_share_one_kernel() -> None:
    x = input("x", bf16[1, 512])
    for layer in range(4):
        normed = norm_of(x, gain=param(f"gain{layer}", bf16[512]))
        inner = ops.relu(normed @ param(f"w{layer}", bf16[512, 640]))
        x = x + inner @ param(f"v{layer}", bf16[640, 512])
    device = replace(BULK, multiprocessors=20, cooperative="on")
    graph = Graph.of({"y": x})
    (whole,) = [made for made in _kernels(make_plan(graph, target=CLAIMS), device) if made.kernel.counter]
    assert _norms_rows(whole) and whole.kernel.passes >= 3
    assert not any(isinstance(s, Alloc) and s.pointer.startswith("prologue") for s in everything(whole.kernel.body))
    drawn = drawn_for(graph)
    resident = run_simulated(graph, device, drawn)
    np.testing.assert_array_equal(resident, run_simulated(graph, replace(device, cooperative="off"), drawn))


def test_a_head_of_many_blocks_scales_its_sums_and_the_product_before_it_adds_the_residual() -> None:
    """The norm after all layers: it was one with the residual, in a kernel of one block that the head waited for."""
    x, r = input("x", bf16[1, 256]), input("r", bf16[1, 256])
    total = x @ param("w", bf16[256, 256]) + r
    graph = Graph.of({"y": norm_of(total) @ param("head", bf16[256, 1000])})
    device = SimulatedDriver()
    device.description = replace(BULK, multiprocessors=4)
    program = dovetail.compile(graph, target=target_of(device))
    assert [step.value.op.name for step in program.plan.phase("run")] == ["matmul_add", "rms_norm", "matmul"]
    product, head = _kernels(program.plan, device.description)
    assert "gain" in head.bindings and "gain" not in product.bindings
    assert isinstance(head.launch.grid, int) and head.launch.grid > 2 * device.description.multiprocessors
    drawn = drawn_for(graph)
    feeds = {n: drawn.pop(n) for n in ("x", "r")}
    found = program.bind(drawn).run(feeds)["y"].astype(np.float64)
    exact = evaluate(graph, feeds, params=drawn, lift=True)["y"]
    assert np.linalg.norm(found - exact) <= 2**-7 * np.linalg.norm(exact)


def test_a_residual_without_a_product_stays_with_its_norm() -> None:
    x, r = input("x", bf16[1, 256]), input("r", bf16[1, 256])
    device = SimulatedDriver()
    device.description = replace(BULK, multiprocessors=4)
    graph = Graph.of({"y": norm_of(x + r) @ param("head", bf16[256, 1000])})
    steps = dovetail.compile(graph, target=target_of(device)).plan.phase("run")
    assert [step.value.op.name for step in steps] == ["residual_rms_norm", "matmul"]

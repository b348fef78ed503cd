"""Kernels that start while the one before them still runs: what they do early, and where they wait."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.dtypes import f16
from dovetail.ir.leaf import input, param
from dovetail.kernels.gpu.gemm.tile import pipelined_tile_of
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import CopyAsync
from dovetail.kernels.matrix_instruction import MMA
from dovetail.kernels.request import Request
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.driver.driver import driver
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.launch_fusion.launches import request_of
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import spilled_bytes, told_of
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.simulated import SimulatedDriver

DEPENDENT = replace(H200, dependent_intensity=inf)
RANDOM = np.random.default_rng(3)


def layers() -> Graph:
    """Two products with weights, a norm between them, and a product of two activations."""
    x = input("x", f16[24, 64])
    h = library.linear(x, param("w", f16[64, 96]), param("b", f16[96]), act="gelu")
    h = library.layer_norm(h, param("g", f16[96]), param("c", f16[96]), eps=1e-5)
    y = library.linear(h, param("v", f16[96, 64]), param("d", f16[64]))
    return Graph.of({"y": y + x, "scores": ops.matmul(h, ops.permute(h, order=(-1, -2)))})


def kernels() -> list[GpuKernel]:
    return [made for _, made in kernels_of(make_plan(layers(), target="cuda"), device=DEPENDENT)]


def arrays() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    drawn = {
        str(v.attrs["name"]): (RANDOM.normal(size=tuple(map(int, map(str, v.shape)))) / 8).astype(np.float16)
        for v in (*layers().inputs, *layers().parameters)
    }
    return {"x": drawn.pop("x")}, drawn


def test_products_copy_constant_factors_early_and_nothing_else() -> None:
    for made in kernels():
        early = {s.source.pointer for s in everything(made.kernel.early) if isinstance(s, CopyAsync)}
        assert early <= set(made.kernel.constants)
        has_weights = any(v.attrs.get("name") in ("w", "v") for v in made.bindings.values())
        assert bool(early) == has_weights, made.kernel.name


@pytest.mark.slow
def test_every_kernel_waits_before_it_reads_what_others_write() -> None:
    for made in kernels():
        assert made.kernel.launch is not None and made.kernel.launch.dependent
        ptx = to_ptx(made.text, "sm_90a")
        before, _, after = ptx.partition("griddepcontrol.wait;")
        assert after and "ld.global" not in before and "st.global" not in before
        loads = [line for line in after.splitlines() if "ld.global.nc" in line]
        assert not loads or made.kernel.constants, "only constants go through the read-only cache"


def test_devices_without_dependent_launches_get_kernels_that_do_not_wait() -> None:
    for _, made in kernels_of(make_plan(layers(), target="cuda")):
        assert not made.kernel.early and "griddepcontrol" not in made.text


@pytest.mark.parametrize(("rows", "starts_early"), [(1, True), (16, True), (128, False)])
def test_programs_that_multiply_little_for_each_byte_start_kernels_early(rows: int, starts_early: bool) -> None:
    x = input("x", f16[rows, 768])
    h = library.layer_norm(x, param("g", f16[768]), param("c", f16[768]), eps=1e-5)
    plan = make_plan(Graph.of({"y": library.linear(h, param("w", f16[768, 768]), param("b", f16[768]))}), target="cuda")
    for device, wanted in ((replace(H200, dependent_intensity=32.0), starts_early), (H200, False), (DEPENDENT, True)):
        launches = [made.kernel.launch for _, made in kernels_of(plan, device=device)]
        assert [launch is not None and launch.dependent for launch in launches] == [wanted] * len(launches)


@pytest.mark.parametrize(("keys", "starts_early"), [(512, True), (1500, False)])
def test_a_long_attention_starts_no_kernel_early(keys: int, starts_early: bool) -> None:
    """It has fewer operations for each byte than products that do."""
    q, k, v = (input(name, f16[1, 6, keys, 64]) for name in "qkv")
    plan = make_plan(Graph.of({"y": library.attention(q, k, v, scale=0.125)}), target="cuda")
    assert request_of(plan, replace(H200, dependent_intensity=1400.0)).starts_early == starts_early


@pytest.mark.parametrize(("rows", "depth", "columns", "alone"), [(128, 768, 768, True), (4096, 64, 4096, False)])
def test_blocks_of_few_tiles_have_a_multiprocessor_each(rows: int, depth: int, columns: int, alone: bool) -> None:
    """Where blocks of the kernel before leave room, two of them would else start on one, and none on others."""
    for starts_early, wanted in ((False, 2), (True, 1 if alone else 2)):
        found = pipelined_tile_of(rows, columns, depth, 1, 64, H200, request=Request(starts_early=starts_early))
        assert found is not None and found[0].blocks == wanted


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100"])
def test_they_assemble_without_spills(architecture: str, tmp_path: Path) -> None:
    device = DEPENDENT if architecture == "sm_90a" else replace(DEPENDENT, matrix_instructions=MMA)
    large = library.linear(input("x", f16[4096, 768]), param("w", f16[768, 768]), param("b", f16[768]))
    graphs = [make_plan(g, target="cuda") for g in (layers(), Graph.of({"y": large}))]
    for made in [made for plan in graphs for _, made in kernels_of(plan, device=device)]:
        told = told_of(to_ptx(made.text, architecture), architecture, tmp_path)
        assert not spilled_bytes(told) and "Performance Loss" not in told, told


def _judged(runner_of: CudaGraph) -> None:
    feeds, params = arrays()
    wanted = evaluate(layers(), feeds, params=params, lift=True)
    runner = runner_of.bind(params)
    for _ in range(3):
        for name, found in runner.run(feeds).items():
            np.testing.assert_allclose(found.astype(np.float64), wanted[name], rtol=2e-2, atol=2e-2)


@pytest.mark.exhaustive
def test_programs_compute_the_same() -> None:
    device = SimulatedDriver()
    device.description = DEPENDENT
    _judged(CudaGraph(make_plan(layers(), target="cuda"), lambda: device))


@on_device
def test_programs_compute_the_same_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = driver()
    if device.capability < (9, 0):
        pytest.skip("dependent launches came with Hopper")
    monkeypatch.setattr(device, "description", replace(device.description, dependent_intensity=inf))
    _judged(CudaGraph(make_plan(layers(), target="cuda"), lambda: device))

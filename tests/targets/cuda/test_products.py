"""Products and attention on GPUs: in lockstep and as PTX here, results on a device there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import bf16, bool_, f16
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import ARCHITECTURES, matrix_instructions
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from tests.targets.cuda.assembled import spilled_bytes, told_of
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import check, expected_of, feeds_of, in_lockstep
from tests.targets.cuda.products import PRODUCTS
from tests.tolerances import assert_close

MODELS: dict[str, Value] = {
    "square": ops.matmul(x_of(bf16, 4096, 4096), x_of(bf16, 4096, 4096, name="w")),
    "bert": library.linear(x_of(f16, 128, 768), x_of(f16, 768, 3072, name="w"), x_of(f16, 3072, name="b"), act="gelu"),
    "swiglu": library.swiglu(x_of(bf16, 512, 1024), x_of(bf16, 1024, 3072, name="g"), x_of(bf16, 1024, 3072, name="u")),
    "attention": library.attention(
        x_of(f16, 1, 12, 128, 64, name="q"),
        x_of(f16, 1, 12, 128, 64, name="k"),
        x_of(f16, 1, 12, 128, 64, name="v"),
        x_of(f16, 1, 1, 128, 128, name="mask"),
        scale=0.125,
    ),
}
"""Sizes of real models: what their kernels take of a multiprocessor."""


@pytest.mark.heavy
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_do_what_the_graph_means(name: str) -> None:
    case = PRODUCTS[name]
    for sizes in case.sizes:
        feeds = feeds_of(Graph.of(case.outputs), sizes)
        check(case, in_lockstep(case, feeds), feeds)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [256, 300], ids=["whole", "ragged"])
def test_rounds_that_no_query_sees_are_left_out(keys: int) -> None:
    """Values that no query of a warp sees may be anything; those of the first queries, which see nothing, are zero."""
    q, k, v = (x_of(f16, 1, 1, n, 64, name=name) for name, n in (("q", 96), ("k", keys), ("v", keys)))
    keep = x_of(bool_, 96, keys, name="keep")
    value = library.attention(q, k, v, keep=keep, scale=0.1, fill=-math.inf, zero_unseen=True)
    case = Case({"y": value})
    feeds = feeds_of(Graph.of(case.outputs), {})
    rows, columns = np.arange(96)[:, None], np.arange(keys)
    feeds["keep"] = (columns <= 2 * rows - 40) | ((columns >= 250) & (rows == 95))
    wanted = expected_of(Graph.of(case.outputs), feeds)
    feeds["v"][..., 200:250, :] = np.inf
    found = in_lockstep(case, feeds)["y"]
    assert np.isfinite(found[..., :64, :]).all() and not found[..., :20, :].any()
    assert_close(found[..., :64, :], wanted["y"][..., :64, :], f16)


@pytest.mark.heavy
@pytest.mark.parametrize("name", MODELS)
def test_tensor_cores_multiply_without_spills(name: str, tmp_path: Path) -> None:
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": MODELS[name]}), target="cuda"))
    ptx = to_ptx(made.text, "sm_90a")
    assert ("mma.sync" in ptx and "ldmatrix" in ptx) or "wgmma.mma_async" in ptx
    assert "cp.async.cg" in ptx or "cp.async.bulk.tensor.2d" in ptx
    assert "__local_depot" not in ptx, "nothing is kept outside of registers"
    told = told_of(ptx, "sm_90a", tmp_path)
    assert not spilled_bytes(told), told


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_use_what_their_architecture_has(name: str, architecture: str) -> None:
    """Ampere and Ada have 164 and 100 KiB of shared memory for a block; products by warpgroups are Hopper's alone."""
    shared = {"sm_80": 163 << 10, "sm_89": 99 << 10, "sm_120": 99 << 10}.get(architecture, 227 << 10)
    device = GpuDevice(architecture, 108, shared, matrix_instructions=matrix_instructions(architecture))
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": MODELS[name]}), target="cuda"), device=device)
    ptx = to_ptx(made.text, architecture)
    assert f".target {architecture}" in ptx
    assert ("wgmma" not in ptx) or architecture == "sm_90a"
    assert made.kernel.launch is not None and made.kernel.launch.shared_bytes <= shared


def test_attention_that_does_not_fit_shared_memory_has_no_kernel() -> None:
    q, k, v = (x_of(f16, 1, 2, 64, 256, name=n) for n in "qkv")
    plan = make_plan(Graph.of({"y": library.attention(q, k, v, scale=0.1)}), target="cuda")
    assert len(kernels_of(plan)) == 1
    small = GpuDevice("sm_89", 108, 32 << 10, matrix_instructions=matrix_instructions("sm_89"))
    assert not kernels_of(plan, device=small)


@pytest.mark.slow
def test_a_loop_of_products_by_a_warpgroup_stays_a_loop() -> None:
    """The assembler unrolls short loops of hundreds of registers, which takes seconds."""
    x, w = x_of(f16, 4096, 768, name="x"), x_of(f16, 768, 768, name="w")
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": x @ w}), target="cuda"))
    ptx = to_ptx(made.text, "sm_90a")
    assert "wgmma.mma_async" in ptx
    assert ptx.count("wgmma.mma_async") in (4, 8), "the four steps of a stage, for one or two blocks of rows"
    assert '.pragma "nounroll";' in ptx


@on_device
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_the_device_are_near_the_reference(name: str) -> None:
    case = PRODUCTS[name]
    runner = CudaGraph(make_plan(Graph.of(case.outputs), target="cuda")).bind({})
    for sizes in case.sizes:
        feeds = feeds_of(Graph.of(case.outputs), sizes)
        for _ in range(3):
            check(case, runner.run(feeds), feeds)

"""The products of streams: 16 columns as a left factor, or eight at two places of k, in any number of rows."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import bf16, f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.gpu.gemv.stream_products import StreamProducts
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, CopyBulk, LoadMatrices, MultiplyMatrices, Statement
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of, steps_of
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.judged import run_in_lockstep
from tests.targets.cuda.simulated import SimulatedDriver

ONE = replace(H200, multiprocessors=1)
"""One multiprocessor has all columns."""
BULK = replace(H200, dependent_intensity=inf, bulk_copies=True)


@pytest.mark.parametrize("depth", [256, 384, 512, 1024])
@pytest.mark.parametrize("rows, columns", [(1, 8), (1, 24), (2, 40), (4, 8), (5, 24), (8, 8), (3, 16), (8, 48)])
def test_every_row_and_column_has_its_own_sum(rows: int, columns: int, depth: int) -> None:
    """Weights differ by column and k, and rows by row and k: sums that mix any of them are wrong by far."""
    x = input("x", bf16[rows, depth])
    graph = Graph.of({"y": x @ ops.permute(input("w", bf16[columns, depth]), order=(-1, -2))})
    random = np.random.default_rng(rows * columns + depth)
    feeds = {
        "x": (random.normal(size=(rows, depth))).astype(bf16.numpy),
        "w": (random.normal(size=(columns, depth)) * depth**-0.5).astype(bf16.numpy),
    }
    plan = make_plan(graph, target="cuda")
    ((_, made),) = kernels_of(plan, device=ONE)
    assert any(isinstance(s, Alloc) and s.pointer == "left_rows" for s in everything(made.kernel.body))
    found = run_in_lockstep(plan, feeds, device=ONE)["y"].astype(np.float64)
    exact = feeds["x"].astype(np.float64) @ feeds["w"].astype(np.float64).T
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize("across, rows, tiles", [(1, 1, 1), (3, 4, 3), (3, 5, 2), (4, 1, 2)])
def test_no_weights_are_loaded_twice(across: int, rows: int, tiles: int) -> None:
    """Eight columns fill a left factor with two places of k, as long as rows leave room for both."""
    products = StreamProducts(bf16, rows, across, 1, 8, 8, "k")
    halves = 2 if products.is_folded else 1
    assert (products.tiles, products.is_folded) == (tiles, across % 2 == 1 and rows <= 4)
    assert products.tiles * 16 == across * 8 * halves + (0 if across % 2 == 0 or products.is_folded else 8)


def test_a_product_loads_each_byte_of_its_weights_once() -> None:
    value = ops.matmul(input("x", bf16[1, 1024]), param("w", bf16[1024, 1024]))
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=BULK)
    ptx = to_ptx(made.text, "sm_90a")
    # Eight columns of 1,024: 16 KB in eight warps are four loads of 512 bytes each, and two of rows.
    assert ptx.count("ldmatrix") == 4 + 2 and ptx.count("mma.sync") == 4


def test_sums_have_memory_of_their_own_where_they_are_few() -> None:
    few, many = (_swiglu(rows) for rows in (1, 8))
    assert any(isinstance(s, Alloc) and s.pointer == "planes" for s in everything(few))
    assert not any(isinstance(s, Alloc) and s.pointer == "planes" for s in everything(many))


def _swiglu(rows: int) -> tuple[Statement, ...]:
    value = library.swiglu(input("x", bf16[rows, 512]), param("g", bf16[512, 640]), param("u", bf16[512, 640]))
    ((_, made),) = kernels_of(
        make_plan(Graph.of({"y": value}), target="cuda"), device=replace(BULK, multiprocessors=20)
    )
    return made.kernel.body


@pytest.mark.parametrize("evict_first", [False, True])
def test_l2_drops_weights_first_where_the_device_does(evict_first: bool) -> None:
    value = ops.matmul(input("x", bf16[1, 256]), param("w", bf16[256, 512]))
    device = replace(BULK, evict_first=evict_first)
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=device)
    copies = [s for s in everything(made.kernel.early) if isinstance(s, CopyBulk)]
    assert copies and all(s.evict_first == evict_first for s in copies)
    ptx = to_ptx(made.text, "sm_90a")
    assert ("L2::cache_hint" in ptx) == ("L2::evict_first" in ptx) == evict_first


@pytest.mark.slow
def test_rows_that_a_prologue_computed_are_read_where_they_are() -> None:
    """A norm that every block computes is not copied again, and no thread waits for a copy."""
    x = input("x", bf16[1, 256])
    gain, shift = param("gain", bf16[256]), param("shift", bf16[256])
    value = library.layer_norm(x, gain, shift, eps=1e-6) @ param("w", bf16[256, 1056])
    graph = Graph.of({"y": value})
    device = SimulatedDriver()
    device.description = replace(BULK, cluster=8)
    plan = make_plan(graph, target="cuda")
    (made,) = [m for _, several in steps_of(plan, device=device.description) for m in several or ()]
    body = [*everything(made.kernel.body)]
    assert not any(isinstance(s, Alloc) and s.pointer == "left_rows" for s in (*body, *everything(made.kernel.early)))
    loads = [s for s in body if isinstance(s, LoadMatrices) and s.source.pointer == "prologue"]
    assert loads and any(isinstance(s, MultiplyMatrices) for s in body)
    random = np.random.default_rng(7)
    drawn = {"gain": (1 + 0.1 * random.normal(size=256)).astype(bf16.numpy)}
    drawn["shift"] = (0.1 * random.normal(size=256)).astype(bf16.numpy)
    drawn["w"] = (random.normal(size=(256, 1056)) / 16).astype(bf16.numpy)
    feeds = {"x": random.normal(size=(1, 256)).astype(bf16.numpy)}
    found = CudaGraph(plan, lambda: device).bind(drawn).run(feeds)["y"].astype(np.float64)
    wanted = evaluate(graph, feeds, params=drawn, lift=True)["y"]
    assert np.linalg.norm(found - wanted) <= 2**-8 * np.linalg.norm(wanted)


def test_norms_of_16_bit_floats_are_rounded_once() -> None:
    """Squares, means and scales in f32: the error is that of the result's rounding."""
    x = input("x", bf16[4, 384])
    graph = Graph.of({"y": library.rms_norm(x, input("gain", bf16[384]), eps=1e-6)})
    random = np.random.default_rng(3)
    feeds = {"x": random.normal(size=(4, 384)).astype(bf16.numpy), "gain": random.normal(size=384).astype(bf16.numpy)}
    plan = make_plan(graph, target="cuda")
    found = run_in_lockstep(plan, feeds)["y"].astype(np.float64)
    exact_x, gain = feeds["x"].astype(np.float64), feeds["gain"].astype(np.float64)
    exact = exact_x / np.sqrt(np.mean(exact_x**2, axis=-1, keepdims=True) + 1e-6) * gain
    assert np.all(np.abs(found - exact) <= 2**-8 * np.abs(exact) * 1.01)
    ((_, made),) = kernels_of(plan, device=H200)
    ptx = to_ptx(made.text, "sm_90a")
    assert "f64" not in ptx and "sqrt.rn" not in ptx and "rsqrt.approx" in ptx


@pytest.mark.slow
def test_sums_of_what_a_graph_rounds_are_sums_of_rounded_elements() -> None:
    """Products that the graph rounds to 16 bits and then sums in f32 keep their rounding."""
    x = input("x", bf16[2, 256])
    rounded = ops.reduce_sum(ops.cast(x * x, dtype=f32), axes=(-1,))
    graph = Graph.of({"y": ops.cast(x, dtype=f32) / rounded})
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 256)).astype(bf16.numpy)}
    found = run_in_lockstep(make_plan(graph, target="cuda"), feeds)
    exact = feeds["x"].astype(np.float64)
    narrow = (exact * exact).astype(bf16.numpy).astype(np.float64).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found["y"].astype(np.float64), exact / narrow, rtol=1e-6)

"""Products with few rows on GPUs: weights in flight, in lockstep and as PTX."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, bf16, f16
from dovetail.ir.leaf import input, param
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, CopyAsync, CopyBulk, Kernel
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import ARCHITECTURES, H200, matrix_instructions
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.graphs import Case
from tests.targets.cuda.judged import check, feeds_of, in_lockstep
from tests.targets.cuda.simulated import SimulatedDriver, drawn_for, run_simulated

DEPENDENT = replace(H200, dependent_intensity=inf)
BULK = replace(DEPENDENT, bulk_copies=True)


def _x(dtype: DType, *shape: SizeLike) -> Value:
    return input("x", dtype[shape])


def _w(dtype: DType, *shape: int, name: str = "w") -> Value:
    return input(name, dtype[shape])


def _transposed(w: Value) -> Value:
    return ops.permute(w, order=(-1, -2))


CASES: dict[str, Value] = {
    "one_row": ops.matmul(_x(bf16, 1, 256), _w(bf16, 256, 48)),
    "stored_by_column": ops.matmul(_x(f16, 3, 264), _transposed(_w(f16, 40, 264))),
    "two_streams": library.swiglu(_x(bf16, 2, 400), _w(bf16, 400, 40, name="g"), _w(bf16, 400, 40, name="u")),
    "eight_rows": library.linear(_x(f16, 8, 200), _w(f16, 200, 72), _w(f16, 72, name="b"), act="gelu"),
    "rows_apart": ops.matmul(_transposed(_x(f16, 136, 5)), _w(f16, 136, 24)),
    "batch": ops.matmul(_x(f16, 3, 2, 128), _w(f16, 3, 128, 16)),
    "more_than_fits": ops.matmul(_x(bf16, 5, 4104), _w(bf16, 4104, 16)),
}
SIZES: dict[str, Value] = {
    "qkv": ops.matmul(_x(bf16, 1, 1024), param("w", bf16[1024, 4096])),
    "swiglu": library.swiglu(_x(bf16, 8, 1024), param("g", bf16[1024, 3072]), param("u", bf16[1024, 3072])),
    "head": ops.matmul(_x(bf16, 1, 1024), param("w", bf16[1024, 151936])),
}
"""Sizes of a real decoder."""


def _only(value: Value, device: GpuDevice = H200) -> GpuKernel:
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=device)
    return made


def _streams(kernel: Kernel) -> bool:
    return any(isinstance(s, Alloc) and s.pointer == "left_rows" for s in everything(kernel.body))


@pytest.mark.parametrize("name", CASES)
def test_products_with_few_rows_do_what_the_graph_means(name: str) -> None:
    case = Case({"y": CASES[name]}, scale=8.0)
    feeds = {n: (x / np.float32(8)).astype(x.dtype) for n, x in feeds_of(Graph.of(case.outputs), {}).items()}
    assert _streams(_only(CASES[name]).kernel)
    check(case, in_lockstep(case, feeds), feeds)


def test_many_rows_unknown_sizes_and_unaligned_columns_have_other_kernels() -> None:
    for value in (
        ops.matmul(_x(bf16, 17, 256), _w(bf16, 256, 48)),
        ops.matmul(_x(bf16, "n", 256), _w(bf16, 256, 48)),
        ops.matmul(_x(bf16, 1, 256), _w(bf16, 256, 47)),
        ops.matmul(_x(bf16, 1, 64), _w(bf16, 64, 48)),
    ):
        assert not _streams(_only(value).kernel)


@pytest.mark.slow
def test_rows_of_weights_that_no_line_holds_are_transposed_where_they_are_parameters() -> None:
    """A vocabulary of 50,257: rows of weights start anywhere, and columns of k do not once they are packed."""
    x, w = _x(bf16, 1, 256), param("w", bf16[256, 1027])
    made = _only(ops.matmul(x, w), BULK)
    assert _streams(made.kernel) and made.packed and made.kernel.early
    graph = Graph.of({"y": ops.matmul(x, w)})
    drawn = drawn_for(graph)
    got = run_simulated(graph, replace(BULK, multiprocessors=8), drawn).astype(np.float64)
    exact = drawn["x"].astype(np.float64) @ drawn["w"].astype(np.float64)
    assert np.linalg.norm(got - exact) <= 4e-3 * np.linalg.norm(exact)


def test_blocks_that_take_many_turns_leave_room_for_a_third() -> None:
    """Two blocks of a multiprocessor start at the same time, and memory has nothing to bring while both multiply."""
    head, qkv = (_only(SIZES[name], BULK).launch for name in ("head", "qkv"))
    at_once = [BULK.shared_bytes // launch.shared_bytes for launch in (head, qkv)]
    assert at_once[0] == 3 and isinstance(head.grid, int) and head.grid > 8 * 2 * BULK.multiprocessors
    # Blocks of the other all run at once: fewer of them would leave a multiprocessor idle.
    assert isinstance(qkv.grid, int) and qkv.grid <= 2 * BULK.multiprocessors


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_they_fit_every_architecture(architecture: str) -> None:
    shared = {"sm_80": 163 << 10, "sm_89": 99 << 10, "sm_120": 99 << 10}.get(architecture, 227 << 10)
    device = GpuDevice(architecture, 108, shared, matrix_instructions=matrix_instructions(architecture))
    made = _only(SIZES["qkv"], device)
    assert made.kernel.launch is not None and made.kernel.launch.shared_bytes <= shared and _streams(made.kernel)
    ptx = to_ptx(made.text, architecture)
    assert "cp.async.cg" in ptx and "__local_depot" not in ptx


@pytest.mark.slow
@pytest.mark.parametrize("device", [DEPENDENT, BULK], ids=["small_copies", "bulk_copies"])
@pytest.mark.parametrize("name", SIZES)
def test_they_assemble_without_spills(name: str, device: GpuDevice, tmp_path: Path) -> None:
    made = _only(SIZES[name], device)
    ptx = to_ptx(made.text, "sm_90a")
    before, _, _ = ptx.partition("griddepcontrol.wait;")
    assert ("cp.async.bulk.shared" if device.bulk_copies else "cp.async.cg") in before, "weights are in flight"
    told = assembled(made, "sm_90a", tmp_path)
    assert not spilled_bytes(told), told


@pytest.mark.slow
@pytest.mark.parametrize("description", [DEPENDENT, BULK], ids=["small_copies", "bulk_copies"])
def test_weights_are_copied_before_the_wait_and_nothing_else_is(description: GpuDevice) -> None:
    x = input("x", bf16[2, 192])
    h = ops.relu(x @ param("v", bf16[192, 128]))
    inner = library.swiglu(h, param("g", bf16[128, 56]), param("u", bf16[128, 56]))
    # Weights that lie by column need no packing; 5 multiprocessors do not share 56 columns evenly.
    outer = h @ _transposed(param("t", bf16[72, 128]))
    graph = Graph.of({"y": inner, "z": h, "w": outer})
    description = replace(description, multiprocessors=5)
    kind = CopyBulk if description.bulk_copies else CopyAsync
    streams = [
        made for _, made in kernels_of(make_plan(graph, target="cuda"), device=description) if _streams(made.kernel)
    ]
    assert len(streams) == 3
    for made in streams:
        early = {s.source.pointer for s in everything(made.kernel.early) if isinstance(s, kind)}
        assert early and early <= set(made.kernel.constants)
    device = SimulatedDriver()
    device.description = description
    random = np.random.default_rng(5)
    drawn = {
        str(v.attrs["name"]): (random.normal(size=tuple(map(int, map(str, v.shape)))) / 8).astype(bf16.numpy)
        for v in (*graph.inputs, *graph.parameters)
    }
    feeds = {"x": drawn.pop("x")}
    wanted = evaluate(graph, feeds, params=drawn, lift=True)
    runner = CudaGraph(make_plan(graph, target="cuda"), lambda: device).bind(drawn)
    for name, found in runner.run(feeds).items():
        np.testing.assert_allclose(found.astype(np.float64), wanted[name], rtol=3e-2, atol=3e-2)

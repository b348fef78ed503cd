"""Products of groups of rows with matrices of their own, against float64; a row has the same bits in every company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Value, library, ops
from dovetail.declare.cost import kernel_cost
from dovetail.ir import leaf
from dovetail.ir.dim import evaluate, symbol
from dovetail.ir.dtype import DType, bf16, f16, f32, i8, i32, i64, u8
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job
from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout, BlockPanels
from dovetail.targets.cpu.gemm.groups import Stacked
from dovetail.targets.cpu.gemm.halves.product import HalfPanels, half_tile
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.native import NativeGraph
from tests.block_arrays import floats_of, random_blocks
from tests.kernels.bytes import SDOT, VNNI
from tests.targets.cpu.gemm.test_amx import DEVICE as WITH_TILES
from tests.targets.cpu.gemm.test_blocks import HAS_DOT, compiled, plans
from tests.targets.cpu.gemm.test_blocks import PAIRS as AVX2

E, K, N = 5, 256, 72
HAS_HALVES = half_tile(host_device()) is not None
RUNS = {
    "one row": (1, [0, 0, 1, 1, 1]),
    "one row after the last group": (1, [0, 0, 0, 0, 0]),
    "a token": (8, [1, 2, 2, 7, 8]),
    "rows after the last group": (8, [0, 3, 3, 5, 6]),
    "many rows": (300, [100, 100, 250, 290, 300]),
    "all rows in one group": (300, [0, 0, 300, 300, 300]),
    "ends that fall and pass the rows": (300, [-5, 1, 9, 4, 400]),
    "no row": (0, [0, 0, 0, 0, 0]),
}


def wanted(x: Array, w: Array, ends: list[int]) -> Array:
    """In float64, row by row."""
    y = np.zeros((len(x), w.shape[-1]))
    passed = np.maximum.accumulate(np.asarray(ends))
    for row, values in enumerate(x.astype(np.float64)):
        group = int(np.searchsorted(passed, row, side="right"))
        if group < len(ends):
            y[row] = values @ w[group].astype(np.float64)
    return y


def stored(kind: str) -> tuple[Value, dict[str, Array], Array]:
    """Matrices [e, k, n] of a parameter, the parameter, and what they are."""
    rng = np.random.default_rng(len(kind))
    if kind == "f32":
        w = rng.normal(size=(E, K, N)).astype(np.float32)
        return leaf.param("w", f32[w.shape]), {"w": w}, w
    if kind in ("f32 turned", "f16", "bf16"):
        dtype: DType = {"f16": f16, "bf16": bf16}.get(kind, f32)
        turned = rng.normal(size=(E, N, K)).astype(dtype.numpy)
        param = leaf.param("w", dtype[turned.shape])
        floats = param if dtype is f32 else ops.cast(param, dtype=f32)
        return ops.permute(floats, order=(-1, -2)), {"w": turned}, turned.astype(np.float64).swapaxes(1, 2)
    blocks = random_blocks(kind, E * N, K, len(kind))
    w = floats_of(kind, blocks).reshape(E, N, K).swapaxes(1, 2)
    blocks = blocks.reshape(E, N, -1)
    param = leaf.param("w", u8[blocks.shape])
    format: Any = kind
    return ops.permute(library.dequantise_blocks(param, format=format), order=(-1, -2)), {"w": blocks}, w


def rows(r: int, seed: int = 0) -> Array:
    return np.random.default_rng([r, seed]).normal(size=(r, K)).astype(np.float32)


@pytest.mark.parametrize("kind", ["f32", "f32 turned", "f16", "bf16", *FORMATS])
def test_every_kind_of_weights(kind: str) -> None:
    w, params, floats = stored(kind)
    x, ends = leaf.input("x", f32[symbol("r"), K]), leaf.input("ends", i32[E])
    program = compiled(Graph.of({"y": ops.grouped_matmul(x, w, ends)}), params)
    for r, last in RUNS.values():
        given = rows(r)
        got = program.run({"x": given, "ends": np.array(last, np.int32)})["y"]
        expected = wanted(given, floats, last)
        assert got.shape == expected.shape
        assert np.abs(got - expected).max(initial=0) <= 2e-6 * max(1.0, np.abs(expected).max(initial=0))
    name = "gemm" if kind.startswith("f32") else "halves" if kind in ("f16", "bf16") else "blocks"
    if (name == "blocks" and HAS_DOT) or (name == "halves" and HAS_HALVES) or name == "gemm":
        assert plans(program) == ([name], 0), "no weight is spelled out"


@pytest.mark.parametrize("kind", ["f32", "bf16", "q4_0", "q8_0", "q4_k", "q6_k"])
def test_a_row_has_the_same_bits_alone_and_among_others(kind: str) -> None:
    w, params, _ = stored(kind)
    x, ends = leaf.input("x", f32[symbol("r"), K]), leaf.input("ends", i64[E])
    graph = Graph.of({"y": ops.grouped_matmul(x, w, ends)})
    given, last = rows(300), np.array([100, 100, 250, 290, 300])
    whole = compiled(graph, params, threads=1).run({"x": given, "ends": last})["y"]
    program = compiled(graph, params, threads=2)
    assert program.run({"x": given, "ends": last})["y"].tobytes() == whole.tobytes()
    for row in (0, 63, 64, 99, 100, 249, 262, 299):
        group = int(np.searchsorted(last, row, side="right"))
        alone = program.run({"x": given[row : row + 1], "ends": (np.arange(E) >= group).astype(np.int64)})["y"]
        assert alone.tobytes() == whole[row : row + 1].tobytes(), row
    few = [0, 1, 120, 121, 122, 260, 292]
    cut = np.searchsorted(few, last)
    got = program.run({"x": given[few], "ends": cut.astype(np.int64)})["y"]
    assert got.tobytes() == whole[few].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_rows_of_16_bits(dtype: DType) -> None:
    w = np.random.default_rng(0).normal(size=(E, K, N)).astype(dtype.numpy)
    x, ends = leaf.input("x", dtype[symbol("r"), K]), leaf.input("ends", i64[E])
    program = compiled(Graph.of({"y": ops.grouped_matmul(x, leaf.param("w", dtype[w.shape]), ends)}), {"w": w})
    given = rows(20).astype(dtype.numpy)
    got = program.run({"x": given, "ends": np.array([1, 7, 7, 18, 19])})["y"]
    expected = wanted(given, w, [1, 7, 7, 18, 19])
    assert got.dtype == dtype.numpy
    assert (
        np.abs(got.astype(np.float64) - expected).max() <= 2.0 ** (-11 if dtype is f16 else -8) * np.abs(expected).max()
    )
    assert plans(program)[0] == ["gemm"]


@pytest.mark.slow
def test_views_of_rows_and_ends() -> None:
    """Rows that are not dense along k, and every second of a vector of ends."""
    w, params, floats = stored("q8_0")
    x, ends = leaf.input("x", f32[K, symbol("r")]), leaf.input("ends", i64[2 * E])
    given, last = rows(20), [1, 7, 7, 18, 19]
    y = ops.grouped_matmul(ops.permute(x, order=(-1, -2)), w, ops.slice_(ends, axis=-1, start=0, stop=2 * E, step=2))
    got = compiled(Graph.of({"y": y}), params).run(
        {"x": np.ascontiguousarray(given.T), "ends": np.repeat(np.array(last), 2) * np.tile([1, 0], E)}
    )["y"]
    expected = wanted(given, floats, last)
    assert np.abs(got - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("ends", [i8, i64])
def test_what_no_kernel_takes_runs_on_the_host(ends: DType) -> None:
    """Weights of a run, and ends of a type that kernels do not read."""
    w = np.random.default_rng(0).normal(size=(E, K, N)).astype(np.float32)
    of = leaf.input("w", f32[w.shape]) if ends is i64 else leaf.param("w", f32[w.shape])
    graph = Graph.of({"y": ops.grouped_matmul(leaf.input("x", f32[9, K]), of, leaf.input("ends", ends[E]))})
    last = [2, 2, 5, 8, 8]
    given = {"x": rows(9), "ends": np.array(last, ends.numpy)}
    program = dovetail.compile(graph, cache="off").bind({} if ends is i64 else {"w": w})
    got = program.run(given | ({"w": w} if ends is i64 else {}))["y"]
    assert not plans(program)[0]
    np.testing.assert_allclose(got, wanted(given["x"], w, last), rtol=1e-5, atol=1e-4)


def test_a_token_has_no_empty_cells() -> None:
    """Cells are counted over the groups that may have rows, not over all of them."""
    groups = 64
    x, ends = leaf.input("x", f32[symbol("r"), K]), leaf.input("ends", i64[groups])
    graph = Graph.of({"y": ops.grouped_matmul(x, leaf.param("w", f32[groups, K, N]), ends)})
    native = NativeGraph(dovetail.compile(graph, cache="off").plan)
    (job,) = [job for part in native.sections for job in part.jobs if isinstance(job, Job)]
    one, eight, many = (evaluate(job.tiled.tiles, {"r": r}) for r in (1, 8, 512))
    assert eight == 8 * one and many < 80 * one


def test_a_report_counts_the_matrices_that_rows_read() -> None:
    """The matrices of eight rows at most, of 64."""
    x, ends = leaf.input("x", f32[8, K]), leaf.input("ends", i64[64])
    cost = kernel_cost(ops.grouped_matmul(x, leaf.param("w", f32[64, K, N]), ends))
    assert cost.bytes == 4 * (8 * K + 8 * K * N + 8 * N) + 8 * 64
    assert cost.flops == 2 * 8 * K * N


@pytest.mark.parametrize("name", ["q4_k", "q8_0", "int4"])
def test_packed_blocks_are_undone(name: str) -> None:
    of = BlockLayout(name, 32, is_signed=False)
    pack = Stacked(BlockPanels(of, ((0, 0),), N, (1,)), E)
    blocks = random_blocks(name, E * N, K).reshape(E, N, -1)
    assert pack.holds([blocks.shape])
    (again,) = pack.unpack(pack(blocks), [blocks.shape])
    assert again.tobytes() == blocks.tobytes()


def test_packed_halves_are_not_undone() -> None:
    assert not Stacked(HalfPanels(((0, 0),), N, (1,), 64), E).holds([(E, N, K)])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("device", "precision", "kind"),
    [
        (VNNI, "exact", "q4_k"),
        (SDOT, "exact", "q8_0"),
        (SDOT, "exact", "q4_k"),
        (AVX2, "exact", "q8_0"),
        (WITH_TILES, "fast", "q4_0"),
    ],
    ids=["vnni", "sdot q8_0", "sdot q4_k", "avx2", "tiles of AMX"],
)
def test_devices_of_other_machines(
    device: CpuDevice, precision: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: device)
    w, params, floats = stored(kind)
    x, ends = leaf.input("x", f32[symbol("r"), K]), leaf.input("ends", i32[E])
    program = compiled(Graph.of({"y": ops.grouped_matmul(x, w, ends)}), params, precision=precision)
    for run in ("one row", "a token", "rows after the last group", "many rows"):
        r, last = RUNS[run]
        given = rows(r)
        got = program.run({"x": given, "ends": np.array(last, np.int32)})["y"]
        expected = wanted(given, floats, last)
        assert np.abs(got - expected).max() <= (2e-6 if precision == "exact" else 2e-2) * np.abs(expected).max()
    assert plans(program) == (["blocks"], 0)

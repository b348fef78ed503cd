"""Products of many rows on tiles of AMX, spelled out in plain vector code, against float64; and what LLVM makes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bf16, f16, f32
from dovetail.ir.literal import Array
from dovetail.kernels.device import Caches, CpuDevice
from dovetail.kernels.spec import Job
from dovetail.library.block_formats import FORMATS
from dovetail.runtime.program import Program
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.gemm.amx.expand import blocks_function, halves_function
from dovetail.targets.cpu.gemm.amx.tiles import (
    TileProduct,
    part_on_tiles,
    product_function,
    row_function,
    rows_on_tiles,
    takes_tiles,
)
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.policy import AMX
from dovetail.targets.cpu.isa import Host
from dovetail.targets.cpu.native import NativeGraph
from tests.kernels.machines import code_for
from tests.targets.cpu.gemm.test_blocks import compiled, rows, weights

DEVICE = CpuDevice(512, 32, ("amx_bf16", "f16_conversion", "vnni"), emulated=True)
PLAIN = replace(DEVICE, capabilities=("f16_conversion", "vnni"))
SAPPHIRE_RAPIDS = Host(
    "x86_64-unknown-linux-gnu", "sapphirerapids", "+amx-bf16,+amx-tile,+avx512bf16,-prefer-256-bit", 512, 32
)
K, N = 768, 40
QUICK = ("q8_0", "q4_0", "q6_k")
EVERY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive) for name in FORMATS]
"""Plain vector code of many formats takes LLVM a while."""


@pytest.fixture(autouse=True)
def _on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: DEVICE)


def as_bf16(x: Array) -> Array:
    """The nearest bf16, as f64."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return kept.view(np.float32).astype(np.float64)


def error(found: Array, x: Array, w: Array) -> float:
    """The largest error, relative to the largest sum, of products of numbers that are rounded to bf16."""
    wanted = as_bf16(x) @ as_bf16(w)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def dequantised(params: dict[str, Array], name: str, format: str, n: int, k: int) -> Array:
    """The matrix [k, n] of some blocks."""
    found = weights({}, name, format, n, k)
    return dovetail.evaluate(Graph.of({"w": found}), {}, params={name: params[name]})["w"]


def product(format: str, n: int = N, k: int = K) -> tuple[Graph, dict[str, Array], Array]:
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), k])
    graph = Graph.of({"y": x @ weights(params, "w", format, n, k)})
    return graph, params, dequantised(params, "w", format, n, k)


def kernels(program: Program) -> list[Job]:
    graph = NativeGraph(program.plan)
    return [job for part in graph.sections for job in part.jobs if isinstance(job, Job)]


def uses_tiles(program: Program, *, all_do: bool = False) -> bool:
    """Whether kernels of a program call functions of tiles: any of them, or all."""
    called = [any("amx." in str(part) for part in job.kernel.shared) for job in kernels(program)]
    return all(called) if all_do else any(called)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EVERY)
def test_every_format(name: str) -> None:
    graph, params, w = product(name)
    program, given = compiled(graph, params, precision="fast"), rows(45, k=K)
    # A few weights of this format lie between two bf16, and another order of sums takes the other.
    bound = 1e-4 if name == "int8_low" else 2e-6
    assert uses_tiles(program) and error(program.run({"x": given})["y"], given, w) < bound


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize(("n", "k"), [(40, 96), (130, 1024)])
def test_weights_of_two_bytes(dtype: DType, n: int, k: int) -> None:
    stored = np.random.default_rng(n).normal(size=(n, k)).astype(dtype.numpy)
    w = ops.permute(ops.cast(leaf.param("w", dtype[n, k]), dtype=f32), order=(-1, -2))
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), k]) @ w})
    program = compiled(graph, {"w": stored}, precision="fast")
    assert uses_tiles(program)
    for m in (33, 70):
        given = rows(m, k=k)
        assert error(program.run({"x": given})["y"], given, stored.astype(np.float32).T) < 3e-6


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 33, 64])
def test_any_number_of_rows_and_columns(n: int) -> None:
    """Whole pairs of tiles, a tile more, and rows that fill no tile; fewer rows are bytes, as without tiles."""
    graph, params, w = product("q8_0", n, 64)
    program, many = compiled(graph, params, precision="fast"), rows(544, k=64)
    for m in (32, 33, 48, 49, 64, 512, 513, 544):
        found = program.run({"x": many[:m]})["y"]
        # A block of few rows at the end of many is one of bytes.
        on_tiles = m if m % AMX.rows == 0 or m % AMX.rows >= AMX.least else m - m % AMX.rows
        assert error(found[:on_tiles], many[:on_tiles], w) < 2e-6
    assert error(program.run({"x": many[:31]})["y"], many[:31], w) > 1e-4


@pytest.mark.slow
def test_fewer_rows_have_the_bits_that_they_have_without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, params, _ = product("q4_0")
    ours, given = compiled(graph, params, precision="fast"), rows(31, k=K)
    assert uses_tiles(ours)
    found = [ours.run({"x": given[:m]})["y"] for m in (1, 5, 31)]
    monkeypatch.setattr(backend, "host_device", lambda: PLAIN)
    plain = compiled(graph, params, precision="fast")
    assert not uses_tiles(plain)
    assert [y.tobytes() for y in found] == [plain.run({"x": given[: len(y)]})["y"].tobytes() for y in found]


@pytest.mark.exhaustive
def test_exact_mode_does_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, params, _ = product("q8_0")
    ours, given = compiled(graph, params), rows(40, k=K)
    assert not uses_tiles(ours)
    found = ours.run({"x": given})["y"]
    monkeypatch.setattr(backend, "host_device", lambda: PLAIN)
    assert found.tobytes() == compiled(graph, params).run({"x": given})["y"].tobytes()


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_epilogues_residuals_and_matrices_side_by_side(threads: int) -> None:
    params: dict[str, Array] = {"b": np.linspace(-1, 1, N, dtype=np.float32)}
    x = leaf.input("x", f32[symbol("m"), 64])
    gate, up = (weights(params, name, "q4_1", N, 64) for name in "gu")
    gated = library.silu.body(x @ gate) * (x @ up)
    linear = ops.relu(x @ weights(params, "v", "q8_0", N, 64) + leaf.param("b", f32[N]))
    inside = x + x @ weights(params, "o", "q8_0", 64, 64)
    graph = Graph.of({"gated": gated, "linear": linear, "inside": inside})
    program, given = compiled(graph, params, precision="fast", threads=threads), rows(90, k=64)
    assert uses_tiles(program, all_do=True)
    found = program.run({"x": given})
    for name, wanted in dovetail.evaluate(graph, {"x": given}, params=params, lift=True).items():
        assert np.abs(found[name] - wanted).max() <= 2e-2 * np.abs(wanted).max()


def test_rows_of_another_type() -> None:
    params: dict[str, Array] = {}
    x = leaf.input("x", f16[symbol("m"), K])
    graph = Graph.of({"y": ops.cast(x, dtype=f32) @ weights(params, "w", "q8_0", N, K)})
    given = rows(40, k=K).astype(np.float16)
    found = compiled(graph, params, precision="fast").run({"x": given})["y"]
    assert error(found, given.astype(np.float32), dequantised(params, "w", "q8_0", N, K)) < 2e-6


def test_what_is_not_finite_stays_in_its_row() -> None:
    graph, params, _ = product("q8_0")
    program, given = compiled(graph, params, precision="fast"), rows(40, k=K)
    wanted = program.run({"x": given})["y"]
    given[3, 7], given[17, 0], given[39] = np.nan, np.inf, 0.0
    found = program.run({"x": given})["y"]
    assert np.isnan(found[3]).all() and not np.isfinite(found[17]).any() and (found[39] == 0).all()
    others = [row for row in range(40) if row not in (3, 17, 39)]
    assert found[others].tobytes() == wanted[others].tobytes()


@pytest.mark.slow
def test_depths_that_are_no_whole_tiles_are_multiplied_as_before() -> None:
    stored = np.random.default_rng(0).normal(size=(N, 100)).astype(np.float16)
    w = ops.permute(ops.cast(leaf.param("w", f16[N, 100]), dtype=f32), order=(-1, -2))
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), 100]) @ w})
    assert not uses_tiles(compiled(graph, {"w": stored}, precision="fast"))
    assert not takes_tiles(DEVICE, 100, 512) and not takes_tiles(DEVICE, 96, 31) and takes_tiles(DEVICE, 96, 32)


def test_rows_stay_in_l2_and_parts_of_panels_in_l1() -> None:
    large = replace(DEVICE, caches=Caches(48 << 10, 2 << 20))
    assert rows_on_tiles(large, 1024, 96, symbol("m")) == 512 and rows_on_tiles(large, 3072, 96, symbol("m")) == 256
    assert rows_on_tiles(large, 1024, 96, 520) == 288, "equal blocks"
    assert rows_on_tiles(large, 2048, 96, symbol("m")) == 256, "of the most rows of a run, too"
    assert rows_on_tiles(replace(large, threads=32), 1024, 32, symbol("m")) == 128, "threads share the rows"
    assert rows_on_tiles(large, 1 << 20, 96, 64) == 32
    assert part_on_tiles(large, 1024, 32, 32) == 512 and part_on_tiles(large, 3072, 64, 32) == 256
    assert part_on_tiles(large, 1056, 32, 32) == 352


def test_tiles_are_configured_and_released() -> None:
    code = code_for(SAPPHIRE_RAPIDS, product_function(TileProduct(32, 1))[0].text, optimize=False)
    places = [place.start() for place in re.finditer(r"\t(tilezero|tileloadd|tilestored|tdpbf16ps)\t", code)]
    assert code.count("ldtilecfg") == code.count("tilerelease") == code.count("retq") == 1
    assert code.index("ldtilecfg") < min(places) and max(places) < code.index("tilerelease") < code.index("retq")
    hottest = max(re.split(r"\n\.L\w+:", code), key=lambda part: part.count("tdpbf16ps"))
    assert hottest.count("tdpbf16ps") == 4 and hottest.count("tileloadd") == 4
    assert hottest.count("prefetcht0") == 2 * 16, "the rows of the next step"


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k", "q6_k"])
def test_blocks_are_expanded_in_registers(name: str) -> None:
    layout = BlockLayout(name, 32, is_signed=False)
    code = code_for(SAPPHIRE_RAPIDS, blocks_function(layout, emulated=False)[0].text, optimize=False)
    assert code.count("vcvtne2ps2bf16") == layout.block // 2 and "%rsp" not in code and "call" not in code


def test_rows_and_halves_are_rounded_by_one_instruction() -> None:
    for text in (row_function(emulated=False)[0].text, halves_function("f16", 64, 32, emulated=False)[0].text):
        code = code_for(SAPPHIRE_RAPIDS, text, optimize=False)
        assert "vcvtne2ps2bf16" in code and "call" not in code
    assert "vcvt" not in code_for(
        SAPPHIRE_RAPIDS, halves_function("bf16", 64, 32, emulated=False)[0].text, optimize=False
    )

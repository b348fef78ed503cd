"""The register tile: what its code looks like, and that every width of vectors gives the same results."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import CpuDevice
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu import backend, native
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.gemm.f32.micro_kernel import PREFETCHING, micro_kernel_text
from dovetail.targets.cpu.gemm.tile import tile_of
from dovetail.targets.cpu.isa import host
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

WIDTHS = [(128, 32), (256, 16), (512, 32)]
"""NEON, AVX2 and AVX-512: bits of a vector, and registers."""


@pytest.mark.parametrize(("lanes", "registers"), [(4, 16), (4, 32), (8, 16), (16, 32)])
def test_a_tile_leaves_registers_for_what_is_multiplied(lanes: int, registers: int) -> None:
    tile = tile_of(CpuDevice(32 * lanes, registers))
    held = tile.rows if tile.by_lane else 1
    assert tile.rows * tile.vectors + tile.vectors + held <= registers
    assert tile.columns == tile.vectors * lanes


def test_rows_of_c_are_prefetched_one_at_a_time_and_not_in_the_inner_loop() -> None:
    tile = tile_of(CpuDevice(512, 32))
    text = micro_kernel_text(tile).partition(f"@{tile.name}{PREFETCHING}.{tile.rows}(")[2].partition("\n}")[0]
    piece, inner = re.split(r"\nrepeat\d+:", text)[1:3]
    for_write = "i32 1, i32 3, i32 1)"
    assert piece.count(for_write) * 64 == tile.row_bytes
    inner = inner.partition("\nafter")[0]
    assert inner.count("@llvm.prefetch") == 1 and for_write not in inner


def test_tiles_whose_calls_are_blocks_prefetch_where_they_are_told() -> None:
    """With several tiles of rows, all but the first read the block from L1: what they prefetch is not ahead of it."""
    tile = tile_of(CpuDevice(128, 32))
    text = micro_kernel_text(tile).partition(f"@{tile.name}.{tile.rows}(")[2].partition("\n}")[0]
    pointer = re.findall(r"(%\S+) = phi ptr \[ %next,", text)[0]
    assert f"@llvm.prefetch.p0(ptr {pointer}," in text and f"ptr {pointer}, i64 %pace" in text
    assert text.count("@llvm.prefetch") * 64 == 4 * tile.row_bytes


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_rounding_errors_do_not_grow_with_the_depth(rows: int) -> None:
    """Blocks of KC products are summed apart. One chain over all of k has several times the error."""
    rng, deep = np.random.default_rng(rows), 4096
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, deep), (deep, 24)))
    graph = Graph.of(ops.matmul(input("x", f32[rows, deep]), param("w", f32[deep, 24])))
    (found,) = native.NativeGraph(make_plan(graph, target=CPU)).bind({"w": w}).run({"x": x}).values()
    exact = x.astype(np.float64) @ w.astype(np.float64)
    chain = np.zeros((rows, 24), np.float32)
    for k in range(deep):
        chain += x[:, k : k + 1] * w[k]
    assert np.std(found - exact) < np.std(chain - exact) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "registers"), WIDTHS)
@pytest.mark.parametrize("deep", [0, 1, 6, 100, 192, 193, 1030, 2500])
def test_blocks_are_summed_the_same_for_every_row_count(
    deep: int, bits: int, registers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 512 bits KC depends on the row count: a call is a part of a block, a block or two.

    LLVM splits vectors that are too wide here. Of 60 columns the last panel is not full.
    """
    wide = replace(host(), vector_bits=bits, vector_registers=registers)
    monkeypatch.setattr(backend, "host_device", lambda: replace(wide.device, capabilities=()))
    rng = np.random.default_rng(deep)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((130, deep), (deep, 60)))
    graph = Graph.of(ops.matmul(input("x", f32[symbol("m"), deep]), param("w", f32[deep, 60])))
    runner = native.NativeGraph(make_plan(graph, target=CPU)).bind({"w": w})
    (whole,) = runner.run({"x": x}).values()
    for rows in (0, 1, 2, 4, 5, 6, 7, 9, 10, 17, 40, 55, 56, 64):
        (found,) = runner.run({"x": x[:rows]}).values()
        assert np.array_equal(found, whole[:rows])
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert np.std(whole - exact) <= 2**-24 * np.std(exact) * (min(deep, 512) + deep / 512) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "registers"), WIDTHS)
def test_every_width_of_vectors(bits: int, registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if bits > host().vector_bits:
        pytest.skip("wider than the vectors here")
    narrow = replace(host(), vector_bits=bits, vector_registers=registers)
    monkeypatch.setattr(backend, "host_device", lambda: narrow.device)
    rng = np.random.default_rng(0)
    for k, n in ((5, 7), (70, 50), (203, 36)):
        x = input("x", f32[symbol("m"), k])
        up, gate = param("up", f32[k, n]), param("gate", f32[k, n])
        for graph in (Graph.of(library.linear(x, up, act="gelu")), Graph.of(library.swiglu(x, up, gate))):
            names = [v.attrs["name"] for v in graph.parameters]
            params = {name: (rng.normal(size=(k, n)) * k**-0.5).astype(np.float32) for name in names}
            compiled = native.NativeGraph(make_plan(graph, target=CPU))
            assert not compiled.on_host
            runner = compiled.bind(params)
            for m in (1, 2, 5, 6, 7, 11, 13, 40, 130):
                feeds = {"x": rng.normal(size=(m, k)).astype(np.float32)}
                (got,) = runner.run(feeds).values()
                (expected,) = evaluate(graph, feeds, lift=True, params=params).values()
                assert_close(got, expected, f32)

"""Products with weights of two bytes, against float64; every row has the same bits however many there are."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bf16, f16, f32, i64
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.runtime.program import Program
from dovetail.targets.cpu.gemm.halves.kernel import STEPS, HalfKernel, rows_function
from dovetail.targets.cpu.gemm.halves.product import HalfPanels, half_tile
from dovetail.targets.cpu.isa import Host, host_device
from tests.kernels.machines import AVX2, NEON, VNNI, code_for, loops, written_to_stack
from tests.targets.cpu.gemm.test_blocks import plans

K, N = 96, 40
WIDENS = half_tile(host_device()) is not None
ROUNDS = host_device().has("f16_arithmetic")
needs_tile = pytest.mark.skipif(not WIDENS, reason="this machine does not widen vectors of f16")


def weights(params: dict[str, Array], name: str, dtype: DType, n: int = N, k: int = K, size: float = 0.05) -> Value:
    """A matrix [k, n] that is stored as [n, k] in two bytes: of all sizes, some below what is normal, and some zero."""
    rng = np.random.default_rng(len(params))
    numbers = size * rng.normal(size=(n, k)) * 10.0 ** rng.integers(-5, 1, (n, k)) * (rng.random((n, k)) < 0.95)
    params[name] = numbers.astype(dtype.numpy)
    return ops.permute(ops.cast(leaf.param(name, dtype[n, k]), dtype=f32), order=(-1, -2))


def product(dtype: DType, n: int = N, k: int = K, size: float = 0.05) -> tuple[Graph, dict[str, Array]]:
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), k])
    return Graph.of({"y": x @ weights(params, "w", dtype, n, k, size)}), params


def compiled(graph: Graph, params: dict[str, Array], **options: Any) -> Program:
    return dovetail.compile(graph, cache="off", **options).bind(params)


def rows(count: int, k: int = K) -> Array:
    return np.random.default_rng(count).normal(size=(count, k)).astype(np.float32)


def furthest(found: Array, x: Array, stored: Array) -> float:
    """The largest error, relative to the sum of the magnitudes of the products."""
    left, right = x.astype(np.float64), stored.astype(np.float64).T
    return float(np.max(np.abs(found - left @ right) / (np.abs(left) @ np.abs(right) + 1e-300)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize(("n", "k"), [(N, K), (16, 4), (1, 100), (33, 512)])
def test_products_and_rows_that_are_cut_in_any_way(dtype: DType, n: int, k: int) -> None:
    graph, params = product(dtype, n, k)
    program, given = compiled(graph, params), rows(70, k)
    whole = program.run({"x": given})["y"]
    assert furthest(whole, given, params["w"]) < 1e-6
    for first, stop in ((0, 1), (5, 7), (8, 11), (64, 70)):
        assert program.run({"x": given[first:stop]})["y"].tobytes() == whole[first:stop].tobytes()


@needs_tile
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_floats_are_never_made(dtype: DType) -> None:
    graph, params = product(dtype)
    names, bound = plans(compiled(graph, params))
    assert names == ["halves"] and bound == 0


@pytest.mark.slow
def test_matrices_side_by_side_and_a_residual() -> None:
    """What queries, keys and values become, and a product that is added to its input."""
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    several = {name: x @ weights(params, name, f16, n) for name, n in (("q", 48), ("k", 20), ("v", 20))}
    graph = Graph.of({**several, "o": x + x @ weights(params, "o", f16, K)})
    program = compiled(graph, params)
    for count in (1, 5):
        given = rows(count)
        found = program.run({"x": given})
        for name in "qkv":
            assert furthest(found[name], given, params[name]) < 1e-6
        assert furthest(found["o"] - given, given, params["o"]) < 1e-4
    if WIDENS:
        names, bound = plans(program)
        assert "gemm" not in names and bound == 0


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("size", [1e-36, 1e-20, 1e20, 1e36])
def test_very_small_and_very_large_rows(size: float, precision: str) -> None:
    graph, params = product(f16)
    given = (rows(3) * size).astype(np.float32)
    found = compiled(graph, params, precision=precision).run({"x": given})["y"]
    assert furthest(found, given, params["w"]) < (1e-6 if precision == "exact" else 2e-3)


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_what_is_not_finite_stays_in_its_row(precision: str) -> None:
    graph, params = product(f16)
    program, given = compiled(graph, params, precision=precision), rows(6)
    wanted = program.run({"x": given})["y"]
    given[1, 7], given[3, 9], given[4] = np.nan, np.inf, 0.0
    found = program.run({"x": given})["y"]
    assert np.isnan(found[1]).all() and not np.isfinite(found[3]).any() and (found[4] == 0).all()
    assert found[[0, 2, 5]].tobytes() == wanted[[0, 2, 5]].tobytes()


@pytest.mark.parametrize("size", [1e-6, 0.05, 8000.0])
def test_fast_rounds_rows_to_f16_and_nothing_overflows(size: float) -> None:
    """Weights as small, or nearly as large, as f16 holds: columns are scaled."""
    graph, params = product(f16, size=size)
    program, given = compiled(graph, params, precision="fast"), rows(9)
    found, exact = program.run({"x": given})["y"], given.astype(np.float64) @ params["w"].astype(np.float64).T
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    assert error < 2e-3 and (error > 1e-5 or not ROUNDS)
    for count in (1, 2, 3):
        assert program.run({"x": given[:count]})["y"].tobytes() == found[:count].tobytes()


def test_steps_that_are_no_whole_vectors_are_floats() -> None:
    graph, params = product(f16, k=30)
    program, given = compiled(graph, params), rows(3, 30)
    assert furthest(program.run({"x": given})["y"], given, params["w"]) < 1e-6
    assert "halves" not in plans(program)[0]


def test_panels_of_matrices_that_end_within_one() -> None:
    """Two matrices below each other, the first of which ends in the middle of a panel."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(rows, 8)).astype(np.float16) for rows in (20, 5, 30)]
    packed = HalfPanels(((0, 0),), 55, (3,), 16)(*parts).view(np.float16)
    whole = np.concatenate(parts)
    for column in range(64):
        wanted = whole[column] if column < 55 else np.zeros(8)
        assert (packed[column // 16, :, column % 16] == wanted).all()


def test_f16_arithmetic_is_found() -> None:
    for features, has in (("+fullfp16", True), ("+dotprod", False)):
        host = Host("aarch64-unknown-linux-gnu", "neoverse-n1", features, 128, 32)
        assert host.device.has("f16_arithmetic") is has


@needs_tile
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_a_table_that_is_also_a_matrix_stays_as_it_is(dtype: DType) -> None:
    """An embedding that is the head, too: rows are cast after they are looked up."""
    stored = np.random.default_rng(0).normal(size=(N, K)).astype(dtype.numpy)
    table, at = leaf.param("w", dtype[N, K]), leaf.input("at", i64[symbol("m")])
    x = ops.cast(ops.gather(table, at, axis=0), dtype=f32)
    graph = Graph.of({"y": x @ ops.permute(ops.cast(table, dtype=f32), order=(-1, -2))})
    program = compiled(graph, {"w": stored})
    found = program.run({"at": np.asarray([3, 0, 7])})["y"]
    assert furthest(found, stored[[3, 0, 7]], stored) < 1e-6
    assert plans(program)[1] == 0


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("machine", [AVX2, VNNI, NEON], ids=["avx2", "avx512", "neon"])
def test_loops_keep_sums_in_registers(machine: Host, name: str) -> None:
    """Tiles of every size on every machine, with weights widened by the instruction that was chosen for it."""
    if machine is not NEON:
        assert half_tile(machine.device) is None, "this one has no F16C"
        machine = replace(machine, features=f"{machine.features},+f16c".strip(","))
    tile = half_tile(machine.device)
    assert tile is not None
    for count in tile.rows:
        for is_spread in (False, True):
            text = rows_function(HalfKernel(name, tile), count, is_spread=is_spread)[0].text
            code = code_for(machine, text, optimize=False)
            (hottest,) = loops(code)
            assert not written_to_stack(hottest)
            halves = name == "f16" and not is_spread
            assert ("vcvtph2ps" in hottest) is (halves and machine is not NEON)
            # One vector of two is converted, the other one's bits are moved: that is what both pipes have time for.
            widened = [hottest.count(word) for word in ("fcvtl", "sshll")]
            assert widened == ([2 * STEPS, 2 * STEPS] if halves and machine is NEON else [0, 0])


def test_one_row_of_f16_is_widened_among_products() -> None:
    """With NEON: among those of the step before, and each line is prefetched into both caches."""
    tile = half_tile(NEON.device)
    assert tile is not None
    code = code_for(NEON, rows_function(HalfKernel("f16", tile), 1, is_spread=False)[0].text, optimize=False)
    (hottest,) = loops(code)
    found = re.findall(r"\tfcvtl2?\t|\tfmla\t|pldl[12]keep", hottest)
    words = "".join([{"\tfm": "*", "\tfc": "w", "pld": ""}[word[:3]] for word in found])
    assert words == "ww" + "w**" * (2 * STEPS - 2) + "****"
    lines = 2 * STEPS * tile.columns // 64
    assert found.count("pldl1keep") == found.count("pldl2keep") == lines


@pytest.mark.slow
@pytest.mark.parametrize("size", [6e-8, 1e-6, 6e4])
def test_the_smallest_and_largest_weights(size: float) -> None:
    """Subnormal f16, and long sums of the largest: neither way of widening loses anything, or overflows."""
    graph, params = product(f16, k=8192)
    params["w"] = np.full((N, 8192), size).astype(np.float16)
    program = compiled(graph, params)
    for scale in (1e-28, 1.0, 1e28):
        given = (np.abs(rows(5, 8192)) * scale).astype(np.float32)
        for count in (1, 5):
            assert furthest(program.run({"x": given[:count]})["y"], given[:count], params["w"]) < 1e-5

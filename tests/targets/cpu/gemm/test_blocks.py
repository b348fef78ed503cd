"""Products with weights in blocks, against float64; every row has the same bits however many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, f16, f32, u8
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job, Template
from dovetail.library.block_formats import FORMATS
from dovetail.runtime.program import Program
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.gemm.blocks.kernel import block_dot
from dovetail.targets.cpu.gemm.blocks.words import NESTED
from dovetail.targets.cpu.gemm.policy import AMX
from dovetail.targets.cpu.gemm.row_panels import equal_rows
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.runtime.building.packed_weights import needed_steps
from tests.block_arrays import random_blocks
from tests.kernels.bytes import SDOT, VNNI

K, N = 512, 40
HAS_DOT = block_dot(host_device()) is not None
needs_dot = pytest.mark.skipif(not HAS_DOT, reason="this machine has no dot products of bytes")
PAIRS = CpuDevice(256, 16, ("byte_pairs",), emulated=True)


def weights(params: dict[str, Array], name: str, format: Any, n: int = N, k: int = K) -> Value:
    """A matrix [k, n] that is stored as blocks of its columns."""
    params[name] = random_blocks(format, n, k, len(params))
    return ops.permute(dequantised(name, params, format), order=(-1, -2))


def dequantised(name: str, params: dict[str, Array], format: Any) -> Value:
    return library.dequantise_blocks(leaf.param(name, u8[params[name].shape]), format=format)


def compiled(graph: Graph, params: dict[str, Array], **options: Any) -> Program:
    return dovetail.compile(graph, cache="off", **options).bind(params)


def plans(program: Program) -> tuple[list[str], int]:
    """The kernels of a program, and how many steps of its bind phase run."""
    graph = NativeGraph(program.plan)
    jobs = [job for part in graph.sections for job in part.jobs]
    names = [job.kernel.name.partition("_")[0] for job in jobs if isinstance(job, Job)]
    return names, len(needed_steps(program.plan, graph.sections))


def judged(graph: Graph, params: dict[str, Array], program: Program, x: Array, tolerance: float = 2e-6) -> None:
    got = program.run({"x": x})
    for name, wanted in dovetail.evaluate(graph, {"x": x}, params=params, lift=True).items():
        assert np.abs(got[name] - wanted).max() <= tolerance * np.abs(wanted).max()


def rows(m: int, seed: int = 0, k: int = K) -> Array:
    return np.random.default_rng(seed).normal(size=(m, k)).astype(np.float32)


@pytest.mark.exhaustive
def test_every_format() -> None:
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    graph = Graph.of({name: x @ weights(params, name, name) for name in FORMATS})
    program = compiled(graph, params)
    for m in (1, 3):
        judged(graph, params, program, rows(m))
    if HAS_DOT:
        assert plans(program) == (["blocks"] * len(FORMATS), 0), "no weight is spelled out"


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_long_rows_are_summed_in_parts(scale: float) -> None:
    """A panel of more than KC steps: sums go on where the part before ended, whatever the magnitude."""
    params: dict[str, Array] = {}
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), 2080]) @ weights(params, "w", "q8_0", 24, 2080)})
    program = compiled(graph, params)
    given = (scale * rows(5, k=2080)).astype(np.float32)
    judged(graph, params, program, given)
    if HAS_DOT:
        alone = [program.run({"x": given[i : i + 1]})["y"] for i in range(5)]
        assert np.concatenate(alone).tobytes() == program.run({"x": given})["y"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q4_1", "q6_k"])
def test_every_op(name: str) -> None:
    params: dict[str, Array] = {"b": np.linspace(-1, 1, N, dtype=np.float32)}
    x = leaf.input("x", f32[symbol("m"), K])
    gated = library.silu.body(x @ weights(params, "g", name)) * (x @ weights(params, "u", name))
    plain = x @ weights(params, "w", name)
    linear = ops.relu(x @ weights(params, "v", name) + leaf.param("b", f32[N]))
    graph = Graph.of({"gated": gated, "plain": plain, "linear": linear})
    program = compiled(graph, params)
    for m in (1, 3, 70):
        judged(graph, params, program, rows(m))
    if HAS_DOT:
        names, bound = plans(program)
        assert names == ["blocks"] * 3 and bound == 0, "no weight is spelled out"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("device", "precision"),
    [(VNNI, "exact"), (PAIRS, "fast"), (PAIRS, "exact"), (SDOT, "exact")],
    ids=["vnni", "pairs fast", "pairs", "sdot"],
)
def test_devices_of_other_machines(device: CpuDevice, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dot products in plain vector code: codes without a sign on VNNI, signed ones by lane on NEON."""
    monkeypatch.setattr(backend, "host_device", lambda: device)
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[3, 128])
    made = {"plain": x @ weights(params, "w", "q8_0", 40, 128)}
    gated = library.silu.body(x @ weights(params, "g", "q4_1", 40, 128)) * (x @ weights(params, "u", "q4_1", 40, 128))
    graph = Graph.of({**made, "gated": gated})
    program = compiled(graph, params, precision=precision)
    judged(graph, params, program, rows(3, k=128), 2e-6 if precision == "exact" else 2e-2)
    assert plans(program) == (["blocks"] * 2, 0)


@needs_dot
def test_rows_have_the_same_bits_however_they_are_cut() -> None:
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    graph = Graph.of({"y": x @ weights(params, "w", "q4_1")})
    program, many = compiled(graph, params), rows(150)
    whole = program.run({"x": many})["y"]
    for start, stop in ((0, 1), (0, 64), (63, 66), (70, 74), (80, 87), (90, 101), (100, 150)):
        part = program.run({"x": many[start:stop]})["y"]
        assert part.tobytes() == whole[start:stop].tobytes()
    assert compiled(graph, params, threads=1).run({"x": many})["y"].tobytes() == whole.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q8_0", "q4_k"])
def test_parts_of_a_panel_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX-512: one row reads a whole panel, three go over it part by part, and expanded blocks are parts."""
    monkeypatch.setattr(backend, "host_device", lambda: VNNI)
    found: list[Array] = []
    for count in (1, 3):
        params: dict[str, Array] = {}
        graph = Graph.of({"y": leaf.input("x", f32[count, K]) @ weights(params, "w", name, 32)})
        program = compiled(graph, params, threads=1, precision="fast")
        judged(graph, params, program, rows(3)[:count], 2e-2)
        found.append(program.run({"x": rows(3)[:count]})["y"])
    assert found[0].tobytes() == found[1][:1].tobytes()


@pytest.mark.slow
@needs_dot
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_one_row_has_the_bits_that_it_has_among_others(precision: str) -> None:
    """Blocks with two levels of scales have a kernel of their own for one row; tiles of many rows are others again.

    With NEON in fast mode it scales whole blocks, and f32 rounds elsewhere; where low halves and whole bytes have a sum
    each, one of them is rounded to an integer of the group first.
    """
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    graph = Graph.of({name: x @ weights(params, name, name) for name in FORMATS})
    # On tiles of AMX many rows of fast mode are bf16.
    count = AMX.least - 1 if precision == "fast" and host_device().has("amx_bf16") else 45
    program, many = compiled(graph, params, precision=precision), rows(count)
    whole = program.run({"x": many})
    few = program.run({"x": many[count - 13 :]})
    assert [name for name in FORMATS if few[name].tobytes() != whole[name][count - 13 :].tobytes()] == []
    for first, stop in ((5, 7), (6, 9), (1, 5)):
        few = program.run({"x": many[first:stop]})
        assert [name for name in FORMATS if few[name].tobytes() != whole[name][first:stop].tobytes()] == []
    dot = block_dot(host_device())
    is_scaled = dot is not None and dot.by_lane and precision == "fast"
    near = {name for name in FORMATS if is_scaled and FORMATS[name].elements > FORMATS[name].group}
    for row in (0, 7, count - 1):
        alone = program.run({"x": many[row : row + 1]})
        among = {name: whole[name][row : row + 1] for name in FORMATS}
        assert [n for n in FORMATS if n not in near and alone[n].tobytes() != among[n].tobytes()] == []
        for name in near:
            bound = 2e-5 if name in NESTED else 2e-6
            assert np.abs(alone[name] - among[name]).max() < bound * np.abs(among[name]).max(), name


@pytest.mark.exhaustive
@needs_dot
@pytest.mark.parametrize("size", [1e-28, 1.0, 1e32])
def test_fast_is_near_at_every_magnitude(size: float) -> None:
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    names = ("q8_0", "q4_0", "q4_1", "q4_k", "q6_k")
    graph = Graph.of({name: x @ weights(params, name, name) for name in names})
    program = compiled(graph, params, precision="fast")
    for m in (1, 3, 9):
        judged(graph, params, program, (rows(m) * size).astype(np.float32), 2e-2)


@pytest.mark.slow
@needs_dot
def test_matrices_side_by_side_and_a_residual() -> None:
    """What queries, keys and values become, and a product that is added to its input."""
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    several = [x @ weights(params, name, "q8_0", n) for name, n in (("q", 96), ("k", 20), ("v", 20))]
    inside = x + x @ weights(params, "o", "q8_0", K)
    graph = Graph.of({**{f"y{i}": y for i, y in enumerate(several)}, "inside": inside})
    program = compiled(graph, params)
    judged(graph, params, program, rows(1))
    judged(graph, params, program, rows(5))
    names, bound = plans(program)
    assert "gemm" not in names and bound == 0


@pytest.mark.parametrize(("dtype", "step"), [(f16, 1), (f32, 2)])
def test_activations_of_another_type_or_stride(dtype: DType, step: int) -> None:
    params: dict[str, Array] = {}
    x = leaf.input("x", dtype[symbol("m"), K * step])
    seen = ops.slice_(x, axis=-1, start=0, stop=K * step, step=step) if step > 1 else x
    floats = seen if dtype is f32 else ops.cast(seen, dtype=f32)
    graph = Graph.of({"y": floats @ weights(params, "w", "q4_0")})
    given = rows(4, k=K * step).astype(dtype.numpy)
    judged(graph, params, compiled(graph, params), given)


@needs_dot
def test_what_is_not_finite_stays_in_its_row() -> None:
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    graph = Graph.of({"y": x @ weights(params, "w", "q8_0")})
    program, given = compiled(graph, params), rows(6)
    wanted = program.run({"x": given})["y"]
    given[1, 7], given[3, 9], given[4] = np.nan, np.inf, 0.0
    found = program.run({"x": given})["y"]
    # Limbs of a row with an infinity are NaN; floats add infinities up.
    assert not np.isfinite(found[[1, 3]]).any() and (found[4] == 0).all()
    assert found[[0, 2, 5]].tobytes() == wanted[[0, 2, 5]].tobytes()


@needs_dot
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_very_small_and_very_large_activations(size: float) -> None:
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    graph = Graph.of({"y": x @ weights(params, "w", "q8_0")})
    given = (rows(3) * size).astype(np.float32)
    judged(graph, params, compiled(graph, params), given)


@needs_dot
def test_fast_rounds_activations_to_bytes_and_exact_does_not() -> None:
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    graph = Graph.of({"y": x @ weights(params, "w", "q4_0")})
    given = rows(8)
    wanted = dovetail.evaluate(graph, {"x": given}, params=params, lift=True)["y"]
    errors = [
        float(np.linalg.norm(compiled(graph, params, precision=p).run({"x": given})["y"] - wanted))
        / float(np.linalg.norm(wanted))
        for p in ("exact", "fast")
    ]
    assert errors[0] < 3e-7 and 1e-3 < errors[1] < 1e-2


def test_rows_that_are_no_whole_groups_are_spelled_out() -> None:
    """Weights that a view cuts, or that several ops read in other ways, are floats as before."""
    params = {"w": random_blocks("q8_0", N, 64)}
    w = dequantised("w", params, "q8_0")
    x = leaf.input("x", f32[symbol("m"), 48])
    cut = ops.permute(ops.slice_(w, axis=-1, start=0, stop=48), order=(-1, -2))
    graph = Graph.of({"y": x @ cut, "w": w})
    judged(graph, params, compiled(graph, params), rows(3, k=48))


@needs_dot
@pytest.mark.parametrize("largest", [1e-20, 1.0, 1e32])
def test_one_row_of_bytes_with_two_codes_has_the_range_of_others(largest: float) -> None:
    """What both sums are too large by is finite times the scale of a row, and exact."""
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), K])
    program = compiled(Graph.of({"y": x @ weights(params, "w", "q4_k")}), params, precision="fast")
    given = rows(3)
    whole = program.run({"x": given})["y"].astype(np.float64)
    scaled = np.concatenate([program.run({"x": given[i : i + 1] * np.float32(largest)})["y"] for i in range(3)])
    assert np.abs(scaled / np.float64(largest) - whole).max() < 2e-3 * np.abs(whole).max()


@pytest.mark.slow
@needs_dot
def test_an_epilogue_prefetches_no_rows_that_are_not_its_own() -> None:
    """It takes all rows of a block; tiles prefetch what it reads, and what it writes."""
    params: dict[str, Array] = {}
    x, more = leaf.input("x", f32[symbol("m"), K]), leaf.input("more", f32[symbol("m"), N])
    plan = compiled(Graph.of({"y": x @ weights(params, "w", "q8_0") + more}), params).plan
    jobs = [job for part in NativeGraph(plan).sections for job in part.jobs if isinstance(job, Job)]
    (kernel,) = [job.kernel for job in jobs if job.kernel.name.startswith("blocks")]
    assert isinstance(kernel, Template)
    epilogues = [part for part in kernel.shared if part.name.startswith("gemm_epilogue")]
    assert epilogues and not any("call void @llvm.prefetch" in part.text for part in epilogues)
    assert "i32 1, i32 2, i32 1)" in kernel.text, "lines of results are prefetched for writing"


def test_rows_are_cut_into_equal_blocks() -> None:
    assert [equal_rows(128, fitting) for fitting in (1000, 128, 127, 60, 1)] == [128, 128, 64, 43, 1]
    for most in range(1, 130):
        for fitting in range(1, 140):
            rows = equal_rows(most, fitting)
            blocks = -(-most // rows)
            assert 1 <= rows <= fitting and blocks == -(-most // fitting) and most - (blocks - 1) * rows > 0

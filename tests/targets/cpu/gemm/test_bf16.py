"""`precision="bf16"`: products of f32 that are rounded to bf16, in plain vector code, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.errors import OptionError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f16, f32
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Template
from dovetail.models.bert import BertShape, bert
from dovetail.models.weights import random_weights
from dovetail.report.rounding import NOTHING
from dovetail.runtime.program import Program
from dovetail.settings import PRECISIONS
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.gemm.amx.bf16 import Bf16Panels, dots_function
from dovetail.targets.cpu.gemm.f32.early import early_products
from dovetail.targets.cpu.gemm.policy import BF16
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.runtime.building.serial import from_bytes, to_bytes
from tests.kernels.machines import code_for, on_stack
from tests.targets.cpu.gemm.test_amx import SAPPHIRE_RAPIDS, as_bf16, error, kernels, uses_tiles
from tests.targets.cpu.gemm.test_amx import product as blocks
from tests.targets.cpu.gemm.test_blocks import compiled, rows

TILES = CpuDevice(512, 32, ("amx_bf16", "avx512_bf16", "f16_conversion", "vnni"), emulated=True)
PAIRS = replace(TILES, capabilities=("avx512_bf16", "f16_conversion", "vnni"))
NEITHER = replace(TILES, capabilities=("f16_conversion", "vnni"))
DEVICES = {"tiles": TILES, "pairs": PAIRS}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CpuDevice:
    """A machine with tiles, or with products of pairs alone."""
    found = DEVICES[request.param]
    monkeypatch.setattr(backend, "host_device", lambda: found)
    return found


def norm_error(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def linear(k: int, n: int, *, turned: bool = False) -> tuple[Graph, Array]:
    """A product with a matrix [k, n], which may be stored [n, k]."""
    w = np.random.default_rng(n).normal(size=(k, n)).astype(np.float32)
    stored = leaf.param("w", f32[n, k] if turned else f32[k, n])
    matrix = ops.permute(stored, order=(-1, -2)) if turned else stored
    return Graph.of({"y": leaf.input("x", f32[symbol("m"), k]) @ matrix}), w


def roundings(program: Program) -> list[str]:
    return [kernel.rounding for kernel in program.report.kernels if kernel.phase == "run"]


@pytest.mark.slow
@pytest.mark.parametrize(("k", "n", "turned"), [(64, 64, False), (100, 70, True), (33, 1, False), (1030, 130, True)])
def test_any_number_of_rows_columns_and_steps(device: CpuDevice, k: int, n: int, turned: bool) -> None:
    """Depths that fill no tile, panels that are partly empty, rows below and above what tiles take."""
    graph, w = linear(k, n, turned=turned)
    program = compiled(graph, {"w": w.T.copy() if turned else w}, precision="bf16", threads=2)
    assert uses_tiles(program)
    for m in (1, 3, 31, 32, 33, 70, 600):
        given = rows(m, k=k)
        assert error(program.run({"x": given})["y"], given, w) < 2e-6


@pytest.mark.slow
def test_a_multilayer_perceptron(device: CpuDevice) -> None:
    """Epilogues, residuals and matrices side by side: near float64, and not what f32 gives."""
    rng = np.random.default_rng(0)
    sizes = {"w": (96, 160), "b": (160,), "gate": (160, 48), "up": (160, 48), "down": (48, 160)}
    params: dict[str, Array] = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    w, b, gate, up, down = (leaf.param(name, f32[size]) for name, size in sizes.items())
    h = ops.relu(leaf.input("x", f32[symbol("m"), 96]) @ w + b)
    graph = Graph.of({"y": h + (library.silu.body(h @ gate) * (h @ up)) @ down})
    program = compiled(graph, params, precision="bf16")
    assert roundings(program) == ["both factors to bf16"] * 3
    for m in (5, 64):
        given = rows(m, k=96)
        wanted = dovetail.evaluate(graph, {"x": given}, params=params, lift=True)["y"]
        # Sums of f32 are within 1e-6.
        assert 1e-4 < norm_error(program.run({"x": given})["y"], wanted) < 2**-7


@pytest.mark.slow
def test_an_encoder(device: CpuDevice) -> None:
    graph = bert(BertShape(2, 64, 2, 128, vocabulary=50, positions=64), batch=1, seq=48)
    params = random_weights(graph, 0)
    # Weights of 0.02 would leave little of a product beside what is added to it.
    params = {name: array * 5 if name.endswith(("weight", "kernel")) else array for name, array in params.items()}
    ids = np.random.default_rng(0).integers(0, 50, (1, 48))
    given = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
    wanted = dovetail.evaluate(graph, given, params=params, lift=True)["last_hidden_state"]
    program = compiled(graph, params, precision="bf16")
    assert roundings(program).count("both factors to bf16") == 8
    assert 1e-5 < norm_error(program.run(given)["last_hidden_state"], wanted) < 2**-7


def test_rows_of_another_type(device: CpuDevice) -> None:
    w = np.random.default_rng(1).normal(size=(50, 40)).astype(np.float32)
    x = leaf.input("x", f16[symbol("m"), 50])
    graph = Graph.of({"y": ops.cast(x, dtype=f32) @ leaf.param("w", f32[50, 40])})
    given = rows(40, k=50).astype(np.float16)
    found = compiled(graph, {"w": w}, precision="bf16").run({"x": given})["y"]
    assert error(found, given.astype(np.float32), w) < 2e-6


def test_what_is_not_finite_stays_in_its_row(device: CpuDevice) -> None:
    graph, w = linear(70, 40)
    program, given = compiled(graph, {"w": w}, precision="bf16"), rows(40, k=70)
    wanted = program.run({"x": given})["y"]
    given[3, 69], given[17, 0], given[39] = np.nan, np.inf, 0.0
    found = program.run({"x": given})["y"]
    assert np.isnan(found[3]).all() and not np.isfinite(found[17]).any() and (found[39] == 0).all()
    others = [row for row in range(40) if row not in (3, 17, 39)]
    assert found[others].tobytes() == wanted[others].tobytes()


def test_products_of_two_activations_stay_f32(device: CpuDevice) -> None:
    graph = Graph.of({"z": leaf.input("x", f32[40, 64]) @ leaf.input("y", f32[64, 40])})
    report = dovetail.explain(graph, precision="bf16")
    assert [kernel.rounding for kernel in report.kernels] == [NOTHING]
    assert f"ROUNDED   1 × {NOTHING} (matmul)" in str(report)
    assert "ROUNDED" not in str(dovetail.explain(graph))


@pytest.mark.slow
def test_a_report_tells_the_error_of_the_weights(device: CpuDevice) -> None:
    """Measured on weights that are known; weights that bf16 holds leave that of activations."""
    graph, w = linear(128, 96)
    kept = as_bf16(w).astype(np.float32)
    given = np.random.default_rng(5).normal(size=(64, 128)).astype(np.float32)
    for weights, least, most in ((w, 2.0e-3, 2.8e-3), (kept, 1.4e-3, 2.0e-3)):
        program = dovetail.compile(graph, params={"w": weights}, precision="bf16", cache="off")
        (kernel,) = program.report.kernels
        assert kernel.error is not None and least < kernel.error < most
        measured = norm_error(program.run({"x": given})["y"], given.astype(np.float64) @ weights)
        assert abs(measured - kernel.error) < 0.1 * kernel.error
        assert f"ROUNDED   1 × both factors to bf16: products are {kernel.error:.2%} off float64" in str(program.report)
    unknown = dovetail.compile(graph, precision="bf16", cache="off").report
    assert unknown.kernels[0].error is None and "about 0.24% off float64" in str(unknown)


@pytest.mark.slow
def test_weights_of_two_bytes_are_rounded_on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows are what exact mode has."""
    monkeypatch.setattr(backend, "host_device", lambda: TILES)
    stored = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float16)
    w = ops.permute(ops.cast(leaf.param("w", f16[40, 64]), dtype=f32), order=(-1, -2))
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), 64]) @ w})
    program, exact = (compiled(graph, {"w": stored}, precision=precision) for precision in ("bf16", "exact"))
    few, many = rows(31, k=64), rows(40, k=64)
    assert program.run({"x": few})["y"].tobytes() == exact.run({"x": few})["y"].tobytes()
    assert error(program.run({"x": many})["y"], many, stored.astype(np.float32).T) < 2e-6
    assert roundings(program)[-1] == "from 32 rows on both factors to bf16" and set(roundings(exact)) == {""}


@pytest.mark.slow
def test_a_report_tells_what_weights_in_blocks_are_multiplied_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: TILES)
    graph, params, _ = blocks("q8_0", 40, 64)
    told = {
        precision: str(dovetail.explain(replace(graph, params=params), precision=precision)) for precision in PRECISIONS
    }
    on_tiles = "from 32 rows on both factors to bf16: products are about 0.24% off float64"
    assert f"ROUNDED   1 × activations to bytes: products are about 0.50%, {on_tiles}" in told["fast"]
    assert f"ROUNDED   1 × {on_tiles}" in told["bf16"] and "ROUNDED" not in told["exact"]
    monkeypatch.setattr(backend, "host_device", lambda: PAIRS)
    assert NOTHING in str(dovetail.explain(graph, precision="bf16")), "blocks are rounded on tiles alone"


def test_a_stored_program_has_the_same_bits(device: CpuDevice) -> None:
    graph, w = linear(70, 40)
    plan = compiled(graph, {"w": w}, precision="bf16").plan
    content = to_bytes(plan, NativeGraph(plan).built.jobs, backend.BACKEND)
    read = NativeGraph(plan, built=from_bytes(plan, content, backend.BACKEND, None))
    given = {"x": rows(40, k=70)}
    assert read.bind({"w": w}).run(given)["y"].tobytes() == NativeGraph(plan).bind({"w": w}).run(given)["y"].tobytes()


def test_machines_without_products_of_bf16_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: NEITHER)
    graph, _ = linear(64, 64)
    with pytest.raises(OptionError, match="neither AMX-BF16 nor AVX512-BF16") as refused:
        dovetail.compile(graph, precision="bf16")
    assert 'precision="exact"' in str(refused.value)
    with pytest.raises(OptionError, match="the target reference has no such products"):
        dovetail.compile(graph, precision="bf16", target="reference")


def test_weights_are_packed_as_tiles() -> None:
    """By the place of each number: [panel, k / 32, column / 16, pair, column, 2]."""
    w = np.arange(40 * 20, dtype=np.float32).reshape(40, 20)
    packed = Bf16Panels(64, ((0, 0),), 20)(w).view(np.uint16)
    found = packed.reshape(1, 2, 4, 16, 16, 2)
    for k, n in ((0, 0), (1, 0), (31, 15), (32, 16), (39, 19)):
        bits = found[0, k // 32, n // 16, k % 32 // 2, n % 16, k % 2]
        assert np.array([bits], np.uint32).astype(np.uint32)[0] << 16 == as_bf16(w)[k, n].astype(np.float32).view("u4")
    assert not found[0, 1, :, 4:].any() and not found[:, :, 2:].any(), "zeros fill up depth and columns"


def test_what_is_compiled_early_is_called(device: CpuDevice) -> None:
    graph, w = linear(64, 64)
    program = compiled(graph, {"w": w}, precision="bf16")
    (job,) = kernels(program)
    early = {part.name for part in early_products(graph.values, device, in_bf16=True)}
    assert isinstance(job.kernel, Template) and early and early <= {part.name for part in job.kernel.shared}


def test_pairs_are_multiplied_by_one_instruction() -> None:
    for count in BF16.rows:
        text = dots_function(count, BF16.vectors, emulated=False)[0].text
        code = code_for(SAPPHIRE_RAPIDS, text, optimize=False)
        assert code.count("vdpbf16ps") == count * BF16.vectors * BF16.pairs and not on_stack(code)

"""Products by cuBLASLt on a device that has it: judged by float64, replayed to the bit, with arrays that move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, input, library, ops, param
from dovetail.dtypes import bf16, f16, f32, f64
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.runtime.program import Program
from dovetail.targets.cuda.driver.driver import driver
from dovetail.targets.cuda.library import choice as library_choice
from dovetail.targets.cuda.library.choice import KIND
from dovetail.targets.cuda.library.cublaslt import place
from tests.targets.cuda.devices import missing, on_device

has_library = pytest.mark.skipif(
    bool(missing()) or place(driver().version // 1000) is None, reason="cuBLASLt is not installed"
)
pytestmark = [on_device, has_library, pytest.mark.serial]
ERRORS = {f64: 1e-14, f32: 4e-6, f16: 1e-3, bf16: 8e-3}
"""Of a product, as a part of its norm: factors are what they are, and results are rounded once."""
SIZES = [(256, 512, 384), (1000, 1000, 1000), (300, 1024, 700), (16, 4096, 768), (1, 256, 128), (33, 65, 129)]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library computes what it can, however long that takes."""
    monkeypatch.setattr(library_choice, "GAIN", float("inf"))


def numbers(dtype: DType, *shape: int) -> Array:
    return np.random.default_rng([7, *shape]).normal(size=shape).astype(dtype.numpy)


def compiled(graph: Graph, folder: Path, **params: Array) -> Program:
    """A program whose products the library computes, which the report tells."""
    program = dovetail.compile(graph, target="cuda", cache=str(folder), tune="always").bind(params)
    assert program.report.launches is not None
    rows = [e for e in program.report.launches() if e.kind == KIND and e.way == "cublaslt"]
    assert rows and all(row.taken for row in rows), [(row.condition, row.found) for row in rows]
    return program


def error(got: Any, wanted: Array) -> float:
    found = np.asarray(got).astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def tanh_of_product(x: Array, w: Array, b: Array) -> Array:
    return np.tanh((x.astype(np.float64) @ w.astype(np.float64) + b.astype(np.float64)) / x.shape[-1] ** 0.5)


@pytest.mark.parametrize("dtype", [f64, f32, f16, bf16])
@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
def test_products_are_near_float64(
    always: None, dtype: DType, rows: int, depth: int, columns: int, tmp_path: Path
) -> None:
    """A result between two products, which stays where it is, and one that moves."""
    x, w, v = input("x", dtype[rows, depth]), param("w", dtype[depth, columns]), param("v", dtype[columns, 64])
    given, first, second = (numbers(dtype, *shape) for shape in ((rows, depth), (depth, columns), (columns, 64)))
    program = compiled(Graph.of({"y": (x @ w) @ v}), tmp_path, w=first, v=second)
    exact = given.astype(np.float64) @ first.astype(np.float64) @ second.astype(np.float64)
    there = program.to_device({"x": given})
    for _ in range(3):
        assert error(program(x=given)["y"], exact) < ERRORS[dtype]
        assert error(program.run(there, outputs="device")["y"].numpy(), exact) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", [f64, f32, f16, bf16])
@pytest.mark.parametrize("side", ["plain", "x", "w", "both"])
def test_epilogues_and_transposed_factors(always: None, dtype: DType, side: str, tmp_path: Path) -> None:
    """Sums are rounded once, after the epilogue."""
    rows, depth, columns = 520, 1032, 264
    given, weight, bias = numbers(dtype, rows, depth), numbers(dtype, depth, columns), numbers(dtype, columns)
    x, w = input("x", dtype[rows, depth]), param("w", dtype[depth, columns])
    if side in ("x", "both"):
        x = ops.permute(input("x", dtype[depth, rows]), order=(-1, -2))
    if side in ("w", "both"):
        w = ops.permute(param("w", dtype[columns, depth]), order=(-1, -2))
    y = ops.tanh((x @ w + param("b", dtype[columns])) * depth**-0.5)
    stored = (np.ascontiguousarray(a.T) if side in (n, "both") else a for n, a in (("x", given), ("w", weight)))
    x_of, w_of = stored
    program = compiled(Graph.of({"y": y}), tmp_path, w=w_of, b=bias)
    wanted = tanh_of_product(given, weight, bias)
    for _ in range(3):
        assert error(program(x=x_of)["y"], wanted) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", [f64, f32, f16, bf16])
def test_two_hundred_replays_are_equal_to_the_bit(always: None, dtype: DType, tmp_path: Path) -> None:
    """With parts of k, which few rows and columns have, and without."""
    for rows, depth, columns in ((64, 8192, 128), (512, 768, 1024)):
        x, w = input("x", dtype[rows, depth]), param("w", dtype[depth, columns])
        graph = Graph.of({"y": ops.tanh((x @ w) * depth**-0.5)})
        program = compiled(graph, tmp_path, w=numbers(dtype, depth, columns))
        there = program.to_device({"x": numbers(dtype, rows, depth)})
        first = program.run(there, outputs="device")["y"].numpy().tobytes()
        for number in range(200):
            assert program.run(there, outputs="device")["y"].numpy().tobytes() == first, f"replay {number} differs"


@pytest.mark.parametrize("dtype", [f64, bf16])
def test_inputs_and_results_move(always: None, dtype: DType, tmp_path: Path) -> None:
    """Other arrays in each run, and results that the caller keeps."""
    size = 264
    x, w = input("x", dtype[size, size]), param("w", dtype[size, size])
    weight = numbers(dtype, size, size)
    kept = compiled(Graph.of({"y": x @ w}), tmp_path, w=weight)
    given = [(numbers(f64, size, size) * n).astype(dtype.numpy) for n in range(1, 6)]
    arrays = [kept.to_device({"x": one}) for one in given]
    found = [(at % 5, kept.run(arrays[at * at % 5], outputs="device")["y"]) for at in range(20)]
    for at, (_, made) in enumerate(found):
        exact = given[at * at % 5].astype(np.float64) @ weight.astype(np.float64)
        assert error(made.numpy(), exact) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", [f64, bf16])
def test_an_input_is_given_away(always: None, dtype: DType, tmp_path: Path) -> None:
    size = 1032  # The step that adds x would add up parts of fewer tiles.
    x, w = input("x", dtype[size, size]), param("w", dtype[size, size])
    weight = numbers(dtype, size, size)
    graph = Graph.of({"y": x + ops.tanh((x @ w) * size**-0.5)}).donate({"y": "x"})
    taken = compiled(graph, tmp_path, w=weight)
    for one in [(numbers(f64, size, size) * n).astype(dtype.numpy) for n in range(1, 4)]:
        there = taken.to_device({"x": one})
        address = there["x"].address
        wide = one.astype(np.float64)
        made = taken.run(there, outputs="device")["y"]
        assert made.address == address
        assert error(made.numpy(), wide + tanh_of_product(one, weight, np.zeros(size))) < ERRORS[dtype]


def test_a_decision_by_times_is_kept(tmp_path: Path) -> None:
    """f64, which cuBLASLt multiplies on tensor cores: another program takes what the first has found."""
    x, w = input("x", f64[1024, 1024]), param("w", f64[1024, 1024])
    graph = Graph.of({"y": ops.tanh(x @ w * 0.03)})
    given, weight = numbers(f64, 1024, 1024), numbers(f64, 1024, 1024)
    outputs: list[bytes] = []
    for tune in ("auto", "off"):
        program = dovetail.compile(graph, target="cuda", cache=str(tmp_path), tune=tune).bind({"w": weight})
        outputs.append(program(x=given)["y"].tobytes())
        assert program.report.launches is not None
        told = [(e.way, e.taken) for e in program.report.launches() if e.kind == KIND]
        assert told in ([("cublaslt", True), ("launch", False)], [("cublaslt", False), ("launch", True)])
    assert outputs[0] == outputs[1]


def test_steps_are_timed_with_the_library_in_a_graph(always: None, tmp_path: Path) -> None:
    x, w = input("x", f32[512, 512]), param("w", f32[512, 512])
    program = compiled(Graph.of({"y": library.gelu(x @ w)}), tmp_path, w=numbers(f32, 512, 512))
    _, marks = program.run_marked({"x": numbers(f32, 512, 512)})
    assert all(1e3 < mark.end - mark.begin < 1e7 for mark in marks)

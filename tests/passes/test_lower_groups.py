"""Grouped products on targets without a kernel of them: the same numbers, in memory for the rows of a token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32, i32
from dovetail.passes.lowerings.groups import FEW_ROWS
from tests.targets.cpu.gemm.test_groups import RUNS, E, K, rows, stored, wanted
from tests.targets.cuda.backend import SIMULATED


def _xla() -> Any:
    pytest.importorskip("jax")
    return "xla"


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("sizes", ["known", "symbolic"])
def test_xla_computes_the_same(kind: str, sizes: str) -> None:
    pytest.importorskip("jax")
    w, params, floats = stored(kind)
    for r, last in RUNS.values():
        if r > 0:
            x, ends = leaf.input("x", f32[r if sizes == "known" else symbol("r"), K]), leaf.input("ends", i32[E])
            graph = Graph.of({"y": ops.grouped_matmul(x, w, ends)})
            program = dovetail.compile(graph, target="xla", cache="off").bind(params)
            given = rows(r)
            got = program.run({"x": given, "ends": np.array(last, np.int32)})["y"]
            expected = wanted(given, floats, last)
            assert np.abs(got - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("r", [5, FEW_ROWS + 1])
def test_a_gpu_computes_the_same(r: int) -> None:
    """Rows of a token gather matrices; more rows meet all of them."""
    rng = np.random.default_rng(r)
    given, w, last = (
        rng.normal(size=(r, 4)).astype(np.float32),
        rng.normal(size=(3, 4, 6)).astype(np.float32),
        [1, 1, 4],
    )
    x, ends = leaf.input("x", f32[r, 4]), leaf.input("ends", i32[3])
    graph = Graph.of({"y": ops.grouped_matmul(x, leaf.param("w", f32[w.shape]), ends)})
    program = dovetail.compile(graph, target=SIMULATED, cache="off").bind({"w": w})
    got = program.run({"x": given, "ends": np.array(last, np.int32)})["y"]
    np.testing.assert_allclose(got, wanted(given, w, last), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_outer_products(target: str) -> None:
    on: Any = SIMULATED if target == "cuda" else _xla()
    x, y, ends = leaf.input("x", f32[9, 5]), leaf.input("y", f32[9, 4]), leaf.input("ends", i32[3])
    program = dovetail.compile(Graph.of({"z": ops.grouped_outer(x, y, ends)}), target=on, cache="off")
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(9, n)).astype(np.float32) for n in (5, 4))
    got = program.run({"x": left, "y": right, "ends": np.array([4, 4, 8], np.int32)})["z"]
    expected = np.stack([left[:4].T @ right[:4], np.zeros((5, 4)), left[4:8].T @ right[4:8]])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_stored_weights_are_gathered_before_they_are_spelled_out() -> None:
    """The floats of all matrices are never there: those of the rows of a token are, or of one row."""
    w, _, _ = stored("q8_0")
    for r in (8, symbol("r")):
        x, ends = leaf.input("x", f32[r, K]), leaf.input("ends", i32[E])
        graph = Graph.of({"y": ops.grouped_matmul(x, w, ends)})
        lowered = dovetail.compile(graph, target=SIMULATED, cache="off").graph
        assert all(v.op.name != "dequantise_blocks" or v.operands[0].op is ops.gather for v in lowered.values)

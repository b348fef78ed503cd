"""Products with few columns: against float64, the same bits however rows are cut, and nearer than sums in one line."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f16
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from tests.kernels import native

SERVED = ("matmul", "linear", "matmul_add", "cast")


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(np.float32)


def check(graph: Graph, *feeds: dict[str, Array], params: dict[str, Array]) -> list[Array]:
    return native.check(graph, *feeds, params=params, kernel="narrow", served=SERVED)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("k", [64, 65, 79, 192, 1030, 5000])
def test_every_number_of_rows_from_one_code(k: int, n: int) -> None:
    graph = Graph.of(input("x", f32[symbol("m"), k]) @ param("w", f32[k, n]))
    inputs = [{"x": normal(m, k)} for m in (0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 150)]
    check(graph, *inputs, params={"w": normal(k, n) / np.float32(k**0.5)})


@pytest.mark.slow
def test_with_epilogues_views_and_weights_of_other_kinds() -> None:
    x, b = input("x", f32[2, symbol("m"), 96]), param("b", f32[3])
    rows = {"x": normal(2, 17, 96)}
    weights = {"w": normal(96, 3) / 10, "b": normal(3)}
    gelu = Graph.of(library.linear(x, param("w", f32[96, 3]), b, act="gelu"))
    turned = Graph.of(x @ ops.permute(param("w", f32[3, 96]), order=(-1, -2)))
    across = Graph.of(ops.permute(input("x", f32[96, 9]), order=(-1, -2)) @ param("w", f32[96, 3]))
    halves = Graph.of(ops.cast(input("x", f16[7, 96]), dtype=f32) @ param("w", f32[96, 3]))
    check(gelu, rows, params=weights)
    check(turned, rows, params={"w": weights["w"].T.copy()})
    check(across, {"x": normal(96, 9)}, params={"w": weights["w"]})
    check(halves, {"x": normal(7, 96).astype(np.float16)}, params={"w": weights["w"]})


@pytest.mark.slow
@pytest.mark.parametrize("k", [67, 1030])
def test_how_rows_are_cut_changes_no_bit(k: int) -> None:
    graph = Graph.of(input("x", f32[symbol("m"), k]) @ param("w", f32[k, 2]))
    x, w = normal(70, k), normal(k, 2)
    cuts = ((0, 70), (0, 1), (5, 8), (64, 70))
    whole, *parts = check(graph, *({"x": x[first:end]} for first, end in cuts), params={"w": w})
    for (first, end), part in zip(cuts[1:], parts, strict=True):
        np.testing.assert_array_equal(part, whole[first:end])


def test_sums_are_nearer_than_those_of_one_line() -> None:
    k = 4000
    x, w = np.abs(normal(64, k)), np.abs(normal(k, 2))
    graph = Graph.of(input("x", f32[64, k]) @ param("w", f32[k, 2]))
    (found,) = check(graph, {"x": x}, params={"w": w})
    exact = x.astype(np.float64) @ w
    line = np.zeros_like(found)
    for i in range(k):
        line += x[:, i, None] * w[i]
    assert np.abs(found - exact).max() < 0.1 * np.abs(line - exact).max()

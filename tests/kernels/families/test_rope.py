"""Rope by its kernel, against its body in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.dtypes import DType, f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bf16, f16, f64
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.library.heads import split_heads
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.native import compiled
from tests.tolerances import assert_close


def normal(*shape: int, dtype: DType = f32, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(dtype.numpy)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
@pytest.mark.parametrize(("width", "rotated"), [(2, None), (8, None), (64, None), (80, 32), (50, 34), (6, 2)])
def test_rows_of_any_length(form: Any, dtype: DType, width: int, rotated: int | None) -> None:
    s, turned = symbol("s"), rotated or width
    x = input("x", dtype[2, 3, s, width])
    cos, sin = input("cos", dtype[s, turned]), input("sin", dtype[2, 1, s, turned])
    if rotated is None:
        value = library.rope(x, cos, sin, form=form)
    else:
        value = library.partial_rope(x, cos, sin, rotated=rotated, form=form)
    graph = Graph.of(value)
    runner = compiled(graph)
    for n in (0, 1, 7, 33):
        feeds = {"x": normal(2, 3, n, width, dtype=dtype), "cos": normal(n, turned, dtype=dtype, seed=1)}
        feeds["sin"] = normal(2, 1, n, turned, dtype=dtype, seed=2)
        (got,) = runner.run(feeds).values()
        (expected,) = evaluate(graph, feeds, lift=True).values()
        assert_close(got, expected, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["half", "interleaved"])
def test_heads_of_a_projection(form: Any) -> None:
    x = input("x", f32[2, 7, 4 * 16])
    cos, sin = input("cos", f32[7, 16]), input("sin", f32[1, 7, 16])
    graph = Graph.of(library.rope(split_heads(x, 4), cos, sin, form=form))
    feeds = {"x": normal(2, 7, 64), "cos": normal(7, 16), "sin": normal(1, 7, 16, seed=1)}
    (got,) = compiled(graph).run(feeds).values()
    (expected,) = evaluate(graph, feeds, lift=True).values()
    assert_close(got, expected, f32)


def test_features_that_are_not_side_by_side() -> None:
    x, cos, sin = input("x", f32[8, 5]), input("cos", f32[8, 5]), input("sin", f32[8, 1])
    turned = [ops.permute(v, order=(-1, -2)) for v in (x, cos, sin)]
    graph = Graph.of(library.rope(*turned))
    feeds = {"x": normal(8, 5), "cos": normal(8, 5, seed=1), "sin": normal(8, 1)}
    (got,) = compiled(graph).run(feeds).values()
    (expected,) = evaluate(graph, feeds, lift=True).values()
    assert_close(got, expected, f32)

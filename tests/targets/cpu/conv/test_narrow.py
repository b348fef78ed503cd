"""Convolutions of 16-bit floats run in the kernels of f32, and are rounded once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, bf16, f16, f32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.ir.value import Value


def _plain(x: Value, w: Value, b: Value) -> Value:
    return ops.conv(x, w, padding=(1, 1, 1, 1))


def _fused(x: Value, w: Value, b: Value) -> Value:
    return library.conv_bias_act(x, w, b, padding=(1, 1, 1, 1), act="relu")


@pytest.mark.slow
@pytest.mark.parametrize("made", [_plain, _fused])
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_sums_are_rounded_once(dtype: DType, made: Callable[[Value, Value, Value], Value]) -> None:
    x, w, b = input("x", dtype[1, 8, 9, 9]), input("w", dtype[16, 8, 3, 3]), input("b", dtype[16, 1, 1])
    graph = Graph.of({"y": made(x, w, b)})
    rng = np.random.default_rng(3)
    feeds: dict[str, Array] = {
        name: rng.normal(size=shape).astype(dtype.numpy)
        for name, shape in (("x", (1, 8, 9, 9)), ("w", (16, 8, 3, 3)), ("b", (16, 1, 1)))
        if name in {v.attrs["name"] for v in graph.inputs}
    }
    program = dovetail.compile(graph, target="cpu")
    found = program.run(feeds)["y"]
    exact = dovetail.evaluate(graph, feeds, lift=True)["y"].astype(np.float64)
    assert found.dtype == dtype.numpy
    unit = float(np.finfo(np.float16).eps) / 2 if dtype is f16 else 2.0**-8
    assert (np.abs(found.astype(np.float64) - exact) <= 1.01 * unit * np.abs(exact) + 1e-5).all()
    x, w, b = input("x", f32[1, 8, 9, 9]), input("w", f32[16, 8, 3, 3]), input("b", f32[16, 1, 1])
    wide = dovetail.compile(Graph.of({"y": made(x, w, b)}))
    assert len(program.plan.phase("run")) <= len(wide.plan.phase("run")) + 3, "what is added are casts"

"""Products of dequantised bytes as products of integers: where they apply, and that their error stays below floats'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, i8, i32, u8
from dovetail.ir.literal import Array
from dovetail.ops.region import region
from dovetail.passes.integers import use_integers
from dovetail.passes.pipeline import Setup, lower
from dovetail.targets.cpu.claims import CLAIMS
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_of
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.bytes import numbers


def dequantised(q: Value, scale: Value | float, zero: Value | int, axis: int | None = None) -> Value:
    steps = leaf.scalar(scale, f32) if isinstance(scale, float) else scale
    low = leaf.constant(np.array(zero, q.dtype.numpy)) if isinstance(zero, int) else zero
    return ops.dequantise(q, steps, low, dtype=f32, axis=axis)


def weights(dtype: DType, *shape: int, axis: int | None) -> Value:
    """Weights with one scale and zero point, or with some along an axis."""
    several = () if axis is None else (shape[axis],)
    w, s, z = leaf.param("w", dtype[shape]), leaf.param("s", f32[several]), leaf.param("z", dtype[several])
    return dequantised(w, s, z, axis)


def params_of(graph: Graph) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for value in graph.parameters:
        shape = tuple(s for s in value.shape if isinstance(s, int))
        steps = np.random.default_rng(1).uniform(0.001, 0.03, shape).astype(np.float32)
        found[value.attrs["name"]] = (
            steps if value.dtype is f32 else numbers(value.dtype, *shape, seed=1).reshape(shape)
        )
    return found


def requantised(x: Value, scale: float, zero: int) -> Value:
    return ops.quantise(x, leaf.scalar(scale, f32), leaf.constant(np.array(zero, np.uint8)), dtype=u8, axis=None)


CONV: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}


def products() -> dict[str, Value]:
    rows, image = leaf.input("x", u8[9, 40]), leaf.input("x", i8[1, 6, 7, 8])
    x, y = dequantised(rows, 0.02, 130), dequantised(image, 0.05, -3)
    return {
        "matmul": x @ weights(i8, 40, 21, axis=None),
        "matmul by columns": x @ weights(u8, 40, 21, axis=-1),
        "matmul transposed": x @ ops.permute(weights(i8, 21, 40, axis=-2), order=(-1, -2)),
        "conv": ops.conv(y, weights(i8, 5, 6, 3, 3, axis=None), **CONV),
        "conv by filters": ops.conv(y, weights(u8, 5, 6, 3, 3, axis=-4), **CONV),
    }


@pytest.mark.parametrize("name", products())
def test_a_product_of_bytes_sums_integers(name: str) -> None:
    graph = Graph.of(products()[name])
    made = use_integers(graph)
    sums = [v for v in made.values if v.op in (ops.matmul, ops.conv)]
    assert [v.dtype for v in sums] == [i32]
    (shape,) = [tuple(s for s in v.shape if isinstance(s, int)) for v in graph.inputs]
    feed, params = {"x": numbers(graph.inputs[0].dtype, *shape)}, params_of(graph)
    exact = evaluate(graph, feed, params=params, lift=True)
    for target in ("reference", "cpu"):
        program = dovetail.compile(graph, target=target, params=params)
        for output, expected in exact.items():
            got = program.run(feed)[output]
            assert np.abs(got - expected).max() <= 4e-7 * np.abs(expected).max()


def refused() -> dict[str, Value]:
    x = dequantised(leaf.input("x", u8[9, 40]), 0.02, 130)
    other = dequantised(leaf.input("y", u8[40, 9]), 0.02, 130)
    deep = dequantised(leaf.input("x", u8[2, 20_000]), 0.02, 130)
    return {
        "weights of a run": x @ other,
        "a scale along the sum": x @ weights(i8, 40, 21, axis=-2),
        "floats": leaf.input("f", f32[9, 40]) @ weights(i8, 40, 21, axis=None),
        "a scale of a run": dequantised(leaf.input("x", u8[9, 40]), leaf.input("t", f32[()]), 0)
        @ weights(i8, 40, 21, axis=None),
        "sums that might not fit": deep @ weights(i8, 20_000, 2, axis=None),
    }


@pytest.mark.parametrize("name", refused())
def test_what_stays_a_product_of_floats(name: str) -> None:
    made = use_integers(Graph.of(refused()[name]))
    assert [v.dtype for v in made.values if v.op is ops.matmul] == [f32]


@pytest.mark.slow
def test_quantisation_by_steps_keeps_every_bit() -> None:
    x = leaf.input("x", f32[1000])
    y = requantised(x, 0.037, 119)
    back = ops.dequantise(y, leaf.scalar(0.5, f32), leaf.constant(np.array(7, np.uint8)), dtype=f32, axis=None)
    graph = Graph.of({"q": y, "f": back})
    made = use_integers(graph)
    assert not [v for v in made.values if v.op in (ops.quantise, ops.dequantise)]
    halves = (np.arange(-500, 500, dtype=np.float32) + np.float32(0.5)) * np.float32(0.037)
    halves[:6] = np.nan, np.inf, -np.inf, 1e38, -1e38, -0.0
    with np.errstate(all="ignore"):
        for name, expected in evaluate(graph, {"x": halves}).items():
            assert evaluate(made, {"x": halves})[name].tobytes() == expected.tobytes()
            assert dovetail.compile(graph).run({"x": halves})[name].tobytes() == expected.tobytes()


def test_strict_keeps_floats() -> None:
    graph = Graph.of(products()["matmul"])
    program = dovetail.compile(graph, target="cpu", params=params_of(graph), strict=True)
    assert not [s for s in program.plan.steps if s.value.dtype is i32 and s.phase == "run"]


@pytest.mark.skipif(byte_tile_of(host_device()) is None, reason="this machine has no dot product of bytes")
def test_a_chain_of_quantised_layers_is_one_kernel_a_layer() -> None:
    x = dequantised(leaf.input("x", u8[9, 40]), 0.02, 130)
    first = requantised(ops.relu(x @ weights(i8, 40, 21, axis=-1) + leaf.param("b", f32[21])), 0.1, 3)
    graph = Graph.of(dequantised(first, 0.1, 3))
    program = dovetail.compile(graph, target="cpu", params=params_of(graph))
    assert len(program.plan.phase("run")) == 1, program.plan


@pytest.mark.slow
@pytest.mark.skipif(byte_tile_of(host_device()) is None, reason="this machine has no dot product of bytes")
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("in_a_view", [False, True])
def test_a_convolution_with_small_weights_and_a_stride_is_one_kernel(strides: tuple[int, int], in_a_view: bool) -> None:
    """Constants that are dequantised stay bytes, an image may be a view, and steps after a stride are an epilogue."""
    lines = leaf.input("x", f32[1, 17, 23])
    q = requantised(lines if in_a_view else ops.unsqueeze(lines, axes=(-4,)), 0.02, 130)
    x = dequantised(q, 0.02, 130)
    w = dequantised(leaf.constant(numbers(i8, 5, 1, 7, 7, seed=3)), 0.01, 0)
    attrs = {**CONV, "strides": strides, "padding": (3, 3, 3, 3)}
    y = ops.conv(ops.unsqueeze(x, axes=(-4,)) if in_a_view else x, w, **attrs)
    graph = Graph.of(requantised(ops.relu(y + leaf.constant(np.ones((5, 1, 1), np.float32))), 0.5, 3))
    program = dovetail.compile(graph, target="cpu")
    assert [s.value.dtype for s in program.plan.phase("run") if s.value.op is region] == [u8, u8]
    feed = {"x": np.random.default_rng(0).normal(0, 1, (1, 17, 23)).astype(np.float32)}
    (got,), (expected,) = program.run(feed).values(), evaluate(graph, feed, lift=True).values()
    assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1


def test_the_pass_needs_a_target_that_multiplies_bytes() -> None:
    graph = Graph.of(products()["matmul"])
    for multiplies in (False, True):
        claims = replace(CLAIMS, multiplies_bytes=multiplies)
        lowered = lower(graph, Setup(claims, ()))
        found = {v.dtype for v in lowered.stage("canonical").values if v.op is ops.matmul}
        assert found == ({i32} if multiplies else {f32})

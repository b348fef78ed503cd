"""rms_norm from primitives, in every spelling, and what follows it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.declare.cost import is_free
from dovetail.derive.fuse import fuse
from dovetail.dtypes import bf16, f16, f32
from dovetail.ir.leaf import input, param
from dovetail.library import ALL
from dovetail.library.norms import Precision
from dovetail.library.rms_norm import rms_norm
from dovetail.ops.elementwise import cast
from tests.library import judge
from tests.library.judge import DIVISIONS, SQUARES, fused, names, near, numbers, only_miss, run

X, GAIN = input("x", f32[2, 3, 8]), param("gain", f32[8])
EPS = 2.0**-10


def mean(x: Value) -> Value:
    return ops.reduce_mean(x, axes=(-1,))


@pytest.mark.parametrize("strict", [False, True], ids=["canonical", "strict"])
@pytest.mark.parametrize(("square", "division"), list(product(SQUARES, DIVISIONS)))
def test_every_spelling_is_the_same_value(square: str, division: str, strict: bool) -> None:
    normed = DIVISIONS[division](X, mean(SQUARES[square](X)) + EPS)
    for spelled, gain in ((GAIN * normed, GAIN), (normed * GAIN, GAIN), (normed, None)):
        result = fused(spelled, strict=strict)
        assert result.graph.outputs["y"] is rms_norm(X, gain, eps=EPS)
        assert not result.missed
        arrays = numbers(result.graph)
        near(
            run(result.graph, arrays)["y"],
            judge.rms_norm(arrays["x"], EPS) * (arrays["gain"] if gain is not None else 1),
        )


def test_the_gain_before_the_division() -> None:
    assert fused((X * GAIN) * ops.rsqrt(mean(X * X) + EPS)).graph.outputs["y"] is rms_norm(X, GAIN, eps=EPS)


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("precision", ["f32", "f32_affine"])
def test_casts_around_half_precision(dtype: judge.DType, precision: Precision) -> None:
    x = input("x", dtype[2, 3, 8])
    gain = param("gain", (f32 if precision == "f32_affine" else dtype)[8])
    wide = cast(x, dtype=f32)
    normed = wide * ops.rsqrt(mean(ops.pow_(wide, 2.0)) + EPS)
    spelled = gain * cast(normed, dtype=dtype) if precision == "f32" else cast(normed * gain, dtype=dtype)
    result = fused(spelled)
    assert result.graph.outputs["y"] is rms_norm(x, gain, eps=EPS, precision=precision)
    assert result.graph.outputs["y"].dtype is dtype
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], judge.rms_norm(arrays["x"], EPS) * arrays["gain"])


def test_a_gain_that_is_cast_up_is_the_gain() -> None:
    x, gain = input("x", f16[2, 8]), param("gain", f16[8])
    wide, wide_gain = cast(x, dtype=f32), cast(gain, dtype=f32)
    spelled = cast((wide * ops.rsqrt(mean(wide * wide) + EPS)) * wide_gain, dtype=f16)
    assert fused(spelled).graph.outputs["y"] is rms_norm(x, wide_gain, eps=EPS, precision="f32_affine")


def test_a_cast_to_another_dtype_than_that_of_x_stays_outside() -> None:
    x = input("x", f16[2, 8])
    wide = cast(x, dtype=f32)
    result = fused(cast(wide * ops.rsqrt(mean(wide * wide) + EPS), dtype=bf16))
    assert names(result.graph) == ["cast", "rms_norm", "cast"]


def test_the_casts_keep_the_rounding_of_the_graph() -> None:
    x = input("x", f16[1, 4])
    wide = cast(x, dtype=f32)
    graph = fused(cast(wide * ops.rsqrt(mean(wide * wide) + EPS), dtype=f16)).graph
    # 300 squared is beyond float16: only a norm in float32 gets through.
    array = np.array([[300.0, 300.0, -300.0, 300.0]], np.float16)
    got = judge.evaluate(graph, {"x": array})["y"]
    np.testing.assert_array_equal(got, np.array([[1, 1, -1, 1]], np.float16))


@pytest.mark.parametrize("shape", [(), (1,), (3, 8)], ids=["scalar", "one number", "matrix"])
def test_a_gain_that_is_no_vector_stays_outside(shape: tuple[int, ...]) -> None:
    gain = param("gain", f32[shape])
    result = fused((X * ops.rsqrt(mean(X * X) + EPS)) * gain)
    assert only_miss(result) == ("rms_norm", "gain_is_a_vector")
    assert result.graph.outputs["y"] is rms_norm(X, eps=EPS) * gain
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], judge.rms_norm(arrays["x"], EPS) * arrays["gain"])


def test_another_axis_is_another_norm() -> None:
    for axes in ((-2,), (-2, -1)):
        assert fused(X * ops.rsqrt(ops.reduce_mean(X * X, axes=axes) + EPS)).graph.count(rms_norm) == 0


def test_the_last_axis_counted_from_the_front_is_the_last_axis() -> None:
    assert fused(X * ops.rsqrt(ops.reduce_mean(X * X, axes=(2,)) + EPS)).graph.count(rms_norm) == 1


def test_the_square_of_another_value_is_no_norm() -> None:
    z = input("z", f32[2, 3, 8])
    assert fused(X * ops.rsqrt(mean(z * z) + EPS)).graph.count(rms_norm) == 0


def test_an_inner_value_that_is_an_output_keeps_its_value() -> None:
    variance = mean(X * X) + EPS
    result = fused({"y": (X * ops.rsqrt(variance)) * GAIN, "variance": variance})
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["y"], judge.rms_norm(arrays["x"], EPS) * arrays["gain"])
    near(got["variance"], np.square(arrays["x"]).mean(-1, keepdims=True) + EPS)


def test_flattening_the_result_is_a_view() -> None:
    x, gain, w = input("x", f32[1, 8, 512]), param("gain", f32[512]), param("w", f32[512, 64])
    normed = (x * ops.rsqrt(mean(x * x) + EPS)) * gain
    graph = fuse(Graph.of(ops.merge(normed, axis=-2) @ w), ALL).graph
    assert graph.count() == 6
    assert [v.op.name for v in graph.values if v.operands and not is_free(v)] == ["rms_norm", "matmul"]
    assert graph.outputs["y"].shape == (8, 64)
    arrays = numbers(graph)
    near(run(graph, arrays)["y"], (judge.rms_norm(arrays["x"], EPS) * arrays["gain"]).reshape(8, 512) @ arrays["w"])

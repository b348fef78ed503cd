"""layer_norm from primitives, in every spelling."""

from __future__ import annotations

from itertools import product

import pytest

from dovetail import Value, ops
from dovetail.dtypes import f16, f32
from dovetail.ir.leaf import input, param
from dovetail.library.layer_norm import layer_norm
from dovetail.ops.elementwise import cast
from tests.library import judge
from tests.library.judge import DIVISIONS, SQUARES, fused, names, near, numbers, only_miss, run

X, GAIN, BIAS = input("x", f32[2, 3, 8]), param("gain", f32[8]), param("bias", f32[8])
EPS = 2.0**-10


def mean(x: Value) -> Value:
    return ops.reduce_mean(x, axes=(-1,))


CENTRED = X - mean(X)
NORMED = CENTRED / ops.sqrt(mean(ops.pow_(CENTRED, 2.0)) + EPS)


@pytest.mark.parametrize("strict", [False, True], ids=["canonical", "strict"])
@pytest.mark.parametrize(("square", "division"), list(product(SQUARES, DIVISIONS)))
def test_every_spelling_is_the_same_value(square: str, division: str, strict: bool) -> None:
    normed = DIVISIONS[division](CENTRED, mean(SQUARES[square](CENTRED)) + EPS)
    for spelled, gain, bias in (
        (BIAS + GAIN * normed, GAIN, BIAS),
        (normed * GAIN + BIAS, GAIN, BIAS),
        (normed * GAIN, GAIN, None),
        (normed + BIAS, None, BIAS),
        (normed, None, None),
    ):
        result = fused(spelled, strict=strict)
        assert result.graph.outputs["y"] is layer_norm(X, gain, bias, eps=EPS)
        assert not result.missed
        arrays = numbers(result.graph)
        expected = judge.layer_norm(arrays["x"], EPS) * (arrays["gain"] if gain is not None else 1)
        near(run(result.graph, arrays)["y"], expected + (arrays["bias"] if bias is not None else 0))


def test_casts_around_half_precision() -> None:
    x = input("x", f16[2, 8])
    wide = cast(x, dtype=f32)
    centred = wide - mean(wide)
    normed = centred * ops.rsqrt(mean(centred * centred) + EPS)
    narrow_gain, narrow_bias = param("gain", f16[8]), param("bias", f16[8])
    before = fused(cast(normed, dtype=f16) * narrow_gain + narrow_bias).graph
    after = fused(cast(normed * GAIN + BIAS, dtype=f16)).graph
    assert before.outputs["y"] is layer_norm(x, narrow_gain, narrow_bias, eps=EPS, precision="f32")
    assert after.outputs["y"] is layer_norm(x, GAIN, BIAS, eps=EPS, precision="f32_affine")
    for graph in (before, after):
        arrays = numbers(graph)
        near(run(graph, arrays)["y"], judge.layer_norm(arrays["x"], EPS) * arrays["gain"] + arrays["bias"])


def test_a_gain_of_another_shape_stays_outside() -> None:
    gain = param("gain", f32[3, 8])
    result = fused(NORMED * gain)
    assert only_miss(result) == ("layer_norm", "gain_is_a_vector")
    assert result.graph.outputs["y"] is layer_norm(X, eps=EPS) * gain


def test_a_bias_of_another_shape_stays_outside() -> None:
    bias = param("bias", f32[2, 3, 8])
    result = fused(NORMED * GAIN + bias, [layer_norm])
    assert only_miss(result) == ("layer_norm", "bias_is_a_vector")
    assert result.graph.outputs["y"] is layer_norm(X, GAIN, eps=EPS) + bias
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], judge.layer_norm(arrays["x"], EPS) * arrays["gain"] + arrays["bias"])


def test_another_axis_is_another_norm() -> None:
    for axes in ((-2,), (-1, -2)):
        centred = X - ops.reduce_mean(X, axes=axes)
        normed = centred * ops.rsqrt(ops.reduce_mean(centred * centred, axes=axes) + EPS)
        assert fused(normed).graph.count(layer_norm) == 0


def test_centred_by_one_axis_and_scaled_by_another_is_no_layer_norm() -> None:
    centred = X - ops.reduce_mean(X, axes=(-2,))
    result = fused(centred * ops.rsqrt(mean(centred * centred) + EPS))
    # What is left of it is the root mean square of what was centred.
    assert names(result.graph) == ["reduce_mean", "sub", "rms_norm"]
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], judge.rms_norm(arrays["x"] - arrays["x"].mean(-2, keepdims=True), EPS))


def test_the_centred_value_as_an_output_keeps_its_value() -> None:
    result = fused({"y": NORMED * GAIN + BIAS, "centred": CENTRED})
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["y"], judge.layer_norm(arrays["x"], EPS) * arrays["gain"] + arrays["bias"])
    near(got["centred"], arrays["x"] - arrays["x"].mean(-1, keepdims=True))

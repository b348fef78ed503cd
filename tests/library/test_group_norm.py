"""group_norm from what exporters write, alone and with silu."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.derive.missed import PRIVATE
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.library.group_norm import group_norm
from dovetail.library.group_norm_silu import group_norm_silu
from dovetail.library.layer_norm import layer_norm
from dovetail.library.silu import silu
from tests.library import judge
from tests.library.judge import DIVISIONS, SQUARES, fused, near, numbers, one, only_miss, run

X, GAIN, BIAS = input("x", f32[2, 6, 4, 5]), param("gain", f32[6, 1, 1]), param("bias", f32[6, 1, 1])
GROUPS, EPS = 3, 2.0**-10


def expected(x: judge.Array) -> judge.Array:
    """Each group of channels on its own, one after the other."""
    result = np.empty_like(x)
    for image, group in np.ndindex(x.shape[0], GROUPS):
        channels = slice(group * 2, group * 2 + 2)
        block = x[image, channels]
        result[image, channels] = (block - block.mean()) / np.sqrt(block.var() + EPS)
    return result


def instance_norm(square: str, division: str) -> Value:
    """Flattened to [n, groups, rest], normalised, and put back into the shape of the image."""
    flat = ops.split(ops.merge(X, axis=-1, count=3), axis=-1, parts=GROUPS)
    centred = flat - ops.reduce_mean(flat, axes=(-1,))
    variance = ops.reduce_mean(SQUARES[square](centred), axes=(-1,)) + EPS
    y = ops.merge(DIVISIONS[division](centred, variance), axis=-1)
    return ops.split(ops.split(y, axis=-1, parts=6), axis=-1, parts=4)


@pytest.mark.parametrize("square", list(SQUARES))
@pytest.mark.parametrize("division", list(DIVISIONS))
def test_from_an_instance_norm_of_the_flattened_image(square: str, division: str) -> None:
    normed = instance_norm(square, division)
    for spelled, gain, bias in (
        (normed * GAIN + BIAS, GAIN, BIAS),
        (BIAS + GAIN * normed, GAIN, BIAS),
        (normed, None, None),
    ):
        result = fused(spelled)
        assert result.graph.outputs["y"] is group_norm(X, gain, bias, groups=GROUPS, eps=EPS)
        arrays = numbers(result.graph)
        wanted = expected(arrays["x"]) * (arrays["gain"] if gain is not None else 1) + (
            arrays["bias"] if bias is not None else 0
        )
        near(run(result.graph, arrays)["y"], wanted)


def test_with_the_mean_over_three_axes() -> None:
    grouped = ops.split(X, axis=1, parts=GROUPS)
    centred = grouped - ops.reduce_mean(grouped, axes=(2, 3, 4))
    variance = ops.reduce_mean(centred * centred, axes=(2, 3, 4)) + EPS
    result = fused(ops.merge(centred * ops.rsqrt(variance), axis=2) * GAIN + BIAS)
    assert result.graph.outputs["y"] is group_norm(X, GAIN, BIAS, groups=GROUPS, eps=EPS)


def test_another_shape_at_the_end_is_no_group_norm() -> None:
    flat = ops.split(ops.merge(X, axis=-1, count=3), axis=-1, parts=GROUPS)
    y = ops.merge(layer_norm(flat, eps=EPS), axis=-1)
    swapped = ops.split(ops.split(y, axis=-1, parts=6), axis=-1, parts=5)
    assert swapped.shape == (2, 6, 5, 4)
    assert fused(swapped).graph.count(group_norm) == 0


@pytest.mark.parametrize("shape", [(5,), (6, 4, 5)], ids=str)
def test_a_gain_or_bias_that_is_not_one_for_each_channel(shape: tuple[int, ...]) -> None:
    other, normed = param("other", f32[shape]), instance_norm("power", "root")
    for spelled, reason in (
        (normed * other, "gain_is_one_for_each_channel"),
        (normed * GAIN + other, "bias_is_one_for_each_channel"),
    ):
        result = fused(spelled)
        assert only_miss(result) == ("group_norm", reason)
        assert result.graph.count(group_norm) == 1
        arrays = numbers(result.graph)
        wanted = expected(arrays["x"])
        wanted = wanted * arrays["other"] if "gain" not in arrays else wanted * arrays["gain"] + arrays["other"]
        near(run(result.graph, arrays)["y"], wanted)


def test_silu_behind_it_makes_one_node() -> None:
    normed = instance_norm("power", "root") * GAIN + BIAS
    graph = fused(normed * ops.sigmoid(normed)).graph
    assert graph.outputs["y"] is group_norm_silu(X, GAIN, BIAS, groups=GROUPS, eps=EPS)
    assert graph.count() == 4
    arrays = numbers(graph)
    near(run(graph, arrays)["y"], judge.silu(expected(arrays["x"]) * arrays["gain"] + arrays["bias"]))


def test_a_normalised_value_that_a_backward_pass_reads_keeps_them_apart() -> None:
    normed = one(group_norm.body(X, GAIN, BIAS, groups=GROUPS, eps=EPS))
    # The slope of silu at the normalised value: what a gradient would need.
    slope = ops.sigmoid(normed) * (1.0 + normed * (1.0 - ops.sigmoid(normed)))
    result = fused({"y": silu(normed), "slope": slope})
    assert ("group_norm_silu", PRIVATE) in [(m.rule, m.reason) for m in result.missed]
    assert (result.graph.count(group_norm_silu), result.graph.count(group_norm)) == (0, 1)
    arrays = numbers(result.graph)
    z = expected(arrays["x"]) * arrays["gain"] + arrays["bias"]
    got = run(result.graph, arrays)
    near(got["y"], judge.silu(z))
    near(got["slope"], judge.sigmoid(z) * (1 + z * (1 - judge.sigmoid(z))))

"""residual_rms_norm: the add and the norm in one pass, at every layer of a pre-norm model."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.derive.fuse import fuse
from dovetail.dtypes import f16, f32
from dovetail.ir.leaf import input, item, param
from dovetail.library import ALL
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.rms_norm import rms_norm
from tests.library import judge
from tests.library.judge import fused, near, numbers, one, only_miss, run

SHAPE = f32[4, 64, 128]
X, R = input("x", SHAPE), input("r", SHAPE)
GAIN, B = param("gain", f32[128]), param("b", f32[128])
EPS = 2.0**-10


def test_5_nodes_become_4() -> None:
    before = Graph.of(rms_norm(X + R, GAIN, eps=EPS))
    after = fuse(before, ALL).graph
    assert (before.count(), after.count()) == (5, 4)
    assert after.outputs["y"] is residual_rms_norm(X, R, GAIN, eps=EPS)
    arrays = numbers(after)
    near(run(after, arrays)["y"], judge.rms_norm(arrays["x"] + arrays["r"], EPS) * arrays["gain"])


@pytest.mark.parametrize("total", [(X + B) + R, R + (X + B), (B + X) + R, R + (B + X)])
def test_a_bias_in_any_place(total: Value) -> None:
    result = fused(rms_norm(total, GAIN, eps=EPS))
    assert result.graph.outputs["y"] is residual_rms_norm(X, R, GAIN, B, eps=EPS)
    arrays = numbers(result.graph)
    summed = arrays["x"] + arrays["b"] + arrays["r"]
    near(run(result.graph, arrays)["y"], judge.rms_norm(summed, EPS) * arrays["gain"])


def decoder(layers: int) -> Graph:
    """A pre-norm chain: every sum is read by its norm and by the next sum."""
    stream = input("x", f32[1, 64, 128])
    for layer in range(layers):
        gain = param(f"gain{layer}", f32[128])
        normed = one(rms_norm.body(stream, gain, eps=EPS))
        stream = stream + ops.relu(normed @ param(f"w{layer}", f32[128, 128]))
    return Graph.of(one(rms_norm.body(stream, param("gain", f32[128]), eps=EPS)))


@pytest.mark.slow
def test_it_fires_at_every_layer_of_a_pre_norm_model() -> None:
    layers = 5
    graph = fuse(decoder(layers), ALL).graph
    # The first norm reads the input itself; the last sum has one reader, all others two.
    assert graph.count(residual_rms_norm) == layers
    assert sum(v.op is residual_rms_norm and v.attrs["keep_sum"] for v in graph.values) == layers - 1
    assert (graph.count(rms_norm), graph.count(ops.add)) == (1, 0)
    arrays = numbers(graph)
    stream = arrays["x"]
    for layer in range(layers):
        stream = stream + judge.relu((judge.rms_norm(stream, EPS) * arrays[f"gain{layer}"]) @ arrays[f"w{layer}"])
    np.testing.assert_allclose(run(graph, arrays)["y"], judge.rms_norm(stream, EPS) * arrays["gain"], rtol=1e-9)


def test_the_norm_is_the_first_result_and_the_sum_the_second() -> None:
    total = X + R
    result = fused({"y": rms_norm(total, GAIN, eps=EPS), "sum": total})
    both = residual_rms_norm(X, R, GAIN, eps=EPS, keep_sum=True)
    assert dict(result.graph.outputs) == {"y": item(both, 0), "sum": item(both, 1)}
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["sum"], arrays["x"] + arrays["r"])
    near(got["y"], judge.rms_norm(arrays["x"] + arrays["r"], EPS) * arrays["gain"])


def test_a_vector_is_no_residual() -> None:
    result = fused(rms_norm(X + B, GAIN, eps=EPS))
    assert only_miss(result) == ("residual_rms_norm", "operands_have_one_shape")
    assert result.graph.count(residual_rms_norm) == 0


def test_half_precision_keeps_its_casts() -> None:
    x, r, gain = input("x", f16[4, 64, 128]), input("r", f16[4, 64, 128]), param("gain", f16[128])
    total = x + r
    normed = one(rms_norm.body(total, gain, eps=EPS, precision="f32"))
    result = fused({"y": normed, "sum": total})
    assert result.graph.outputs["sum"] is item(
        residual_rms_norm(x, r, gain, eps=EPS, precision="f32", keep_sum=True), 1
    )


def test_symbolic_rows() -> None:
    x, r = input("x", f32["b", "s", 128]), input("r", f32["b", "s", 128])
    assert fused(rms_norm(x + r, GAIN, eps=EPS)).graph.outputs["y"] is residual_rms_norm(x, r, GAIN, eps=EPS)
    other = input("r", f32["b", "t", 128])
    assert only_miss(fused(rms_norm(x + other, GAIN, eps=EPS)))[1] == "operands_have_one_shape"

"""residual_layer_norm: the add and the norm in one pass, with the sum as a second result."""

from __future__ import annotations

import pytest

from dovetail import Graph, Value, ops
from dovetail.derive.fuse import fuse
from dovetail.dtypes import f16, f32
from dovetail.graphs import TensorType
from dovetail.ir.leaf import input, item, param
from dovetail.library import ALL
from dovetail.library.layer_norm import layer_norm
from dovetail.library.residual_layer_norm import residual_layer_norm
from tests.library import judge
from tests.library.judge import fused, near, numbers, one, only_miss, run

# Large enough that traffic decides, not the cost of starting a kernel.
SHAPE = f32[4, 64, 128]
X, R = input("x", SHAPE), input("r", SHAPE)
GAIN, BIAS, B = param("gain", f32[128]), param("bias", f32[128]), param("b", f32[128])
EPS = 2.0**-10


def norm(x: Value) -> Value:
    return layer_norm(x, GAIN, BIAS, eps=EPS)


def expected(total: judge.Array, arrays: judge.Arrays) -> judge.Array:
    return judge.layer_norm(total, EPS) * arrays["gain"] + arrays["bias"]


def test_6_nodes_become_5() -> None:
    before = Graph.of(norm(X + R))
    after = fuse(before, ALL).graph
    assert (before.count(), after.count()) == (6, 5)
    assert after.outputs["y"] is residual_layer_norm(X, R, GAIN, BIAS, eps=EPS)
    arrays = numbers(after)
    near(run(after, arrays)["y"], expected(arrays["x"] + arrays["r"], arrays))


def test_from_primitives() -> None:
    result = fused(one(layer_norm.body(X + R, GAIN, BIAS, eps=EPS)))
    assert result.graph.outputs["y"] is residual_layer_norm(X, R, GAIN, BIAS, eps=EPS)


@pytest.mark.parametrize("total", [(X + B) + R, R + (X + B), (B + X) + R, R + (B + X)])
def test_a_bias_in_any_place(total: Value) -> None:
    result = fused(norm(total))
    assert result.graph.outputs["y"] is residual_layer_norm(X, R, GAIN, BIAS, B, eps=EPS)
    assert not result.missed
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], expected(arrays["x"] + arrays["b"] + arrays["r"], arrays))


def test_the_sum_is_a_second_result_where_it_is_read() -> None:
    total = X + R
    result = fused({"y": norm(total), "next": ops.relu(total), "sum": total})
    both = residual_layer_norm(X, R, GAIN, BIAS, eps=EPS, keep_sum=True)
    assert result.graph.outputs["y"] is item(both, 0)
    assert result.graph.outputs["sum"] is item(both, 1)
    assert result.graph.outputs["next"] is ops.relu(item(both, 1))
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    summed = arrays["x"] + arrays["r"]
    near(got["y"], expected(summed, arrays))
    near(got["sum"], summed)
    near(got["next"], judge.relu(summed))


def test_a_sum_that_feeds_the_gain_of_its_own_norm() -> None:
    total = X + R
    gain = ops.squeeze(ops.reduce_max(total, axes=(0, 1)), axes=(0, 1))
    result = fused({"y": layer_norm(total, gain, eps=EPS), "sum": total})
    assert [m.rule for m in result.missed] == ["residual_layer_norm"]
    assert result.graph.count(residual_layer_norm) == 0
    arrays = numbers(result.graph)
    summed = arrays["x"] + arrays["r"]
    near(run(result.graph, arrays)["y"], judge.layer_norm(summed, EPS) * summed.max((0, 1)))


def test_twice_the_same_operand() -> None:
    result = fused(norm(X + X))
    assert result.graph.outputs["y"] is residual_layer_norm(X, X, GAIN, BIAS, eps=EPS)
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], expected(2 * arrays["x"], arrays))


@pytest.mark.parametrize("other", [f32[128], f32[64, 128], f32[4, 1, 128], f32[()]], ids=str)
def test_what_is_no_residual(other: TensorType) -> None:
    b = param("b", other)
    result = fused(norm(X + b))
    assert only_miss(result) == ("residual_layer_norm", "operands_have_one_shape")
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], expected(arrays["x"] + arrays["b"], arrays))


def test_a_third_tensor_is_no_bias() -> None:
    third = input("third", SHAPE)
    result = fused(norm(X + third + R))
    assert result.graph.outputs["y"] is residual_layer_norm(X + third, R, GAIN, BIAS, eps=EPS)
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], expected(arrays["x"] + arrays["third"] + arrays["r"], arrays))


def test_half_precision_keeps_its_casts() -> None:
    x, r, gain = input("x", f16[4, 64, 128]), input("r", f16[4, 64, 128]), param("gain", f16[128])
    result = fused(one(layer_norm.body(x + r, gain, eps=EPS, precision="f32")))
    assert result.graph.outputs["y"] is residual_layer_norm(x, r, gain, eps=EPS, precision="f32")

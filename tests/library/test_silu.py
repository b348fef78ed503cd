"""silu from x * sigmoid(x)."""

from __future__ import annotations

from dovetail import ops
from dovetail.dtypes import f16, f32
from dovetail.ir.leaf import input
from dovetail.library.silu import silu
from tests.library import judge
from tests.library.judge import fused, near, numbers, run

X, Z = input("x", f32[3, 5]), input("z", f32[3, 5])


def test_both_orders_of_the_product() -> None:
    for spelled in (X * ops.sigmoid(X), ops.sigmoid(X) * X):
        result = fused(spelled)
        assert result.graph.outputs["y"] is silu(X)
        arrays = numbers(result.graph)
        near(run(result.graph, arrays)["y"], judge.silu(arrays["x"]))


def test_the_sigmoid_of_another_value_is_no_silu() -> None:
    assert fused(X * ops.sigmoid(Z)).graph.count(silu) == 0


def test_a_silu_of_itself_as_its_own_partner() -> None:
    once = X * ops.sigmoid(X)
    result = fused(once * once)
    arrays = numbers(result.graph)
    assert result.graph.count(silu) == 1
    near(run(result.graph, arrays)["y"], judge.silu(arrays["x"]) ** 2)


def test_half_precision_is_a_silu_too() -> None:
    x = input("x", f16[4])
    assert fused(x * ops.sigmoid(x)).graph.outputs["y"] is silu(x)

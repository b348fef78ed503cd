"""gelu in every form that exporters write."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f16, f32
from dovetail.ir.leaf import constant, input
from dovetail.library.gelu import gelu
from tests.library import judge
from tests.library.judge import fused, near, numbers, run

X = input("x", f32[3, 5])
ROOT, SLOPE = math.sqrt(2), math.sqrt(2 / math.pi)
BENT = ops.erf(X / ROOT) + 1.0
CUBED = ops.pow_(X, 3.0)
WAVED = ops.tanh(SLOPE * (X + 0.044715 * CUBED)) + 1.0
WAVED_BY_PRODUCT = ops.tanh(SLOPE * (X + 0.044715 * (X * X * X))) + 1.0


@pytest.mark.parametrize(
    "spelled",
    [
        X * (0.5 * BENT),
        (X * BENT) * 0.5,
        (X * 0.5) * BENT,
        X * (0.5 * (ops.erf(X * (1 / ROOT)) + 1.0)),
        0.5 * (X * (1.0 + ops.erf(X * (1 / ROOT)))),
    ],
    ids=["dynamo", "torchscript", "half first", "root as a factor", "root as a factor, half last"],
)
@pytest.mark.parametrize("strict", [False, True], ids=["canonical", "strict"])
def test_erf_forms(spelled: Value, strict: bool) -> None:
    result = fused(spelled, strict=strict)
    assert result.graph.outputs["y"] is gelu(X)
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], judge.gelu(arrays["x"]))


@pytest.mark.parametrize(
    "spelled",
    [
        (X * 0.5) * WAVED,
        (0.5 * X) * WAVED_BY_PRODUCT,
        0.5 * (X * WAVED),
        X * (0.5 * WAVED_BY_PRODUCT),
    ],
    ids=["gpt-2", "cube by products", "half last", "half inside"],
)
def test_tanh_forms(spelled: Value) -> None:
    result = fused(spelled)
    assert result.graph.outputs["y"] is gelu(X, form="tanh")
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], judge.gelu_tanh(arrays["x"]))


def test_the_form_of_gpt_2_where_every_bit_is_kept() -> None:
    assert fused((X * 0.5) * WAVED, strict=True).graph.outputs["y"] is gelu(X, form="tanh")


def test_constants_of_shape_1_are_numbers_too() -> None:
    half, one = constant(np.array([0.5], np.float32)), constant(np.array([1.0], np.float32))
    assert fused(X * (half * (ops.erf(X / ROOT) + one))).graph.outputs["y"] is gelu(X)


def test_constants_in_half_precision() -> None:
    x = input("x", f16[4])
    assert fused(x * (0.5 * (ops.erf(x / ROOT) + 1.0))).graph.outputs["y"] is gelu(x)


def test_other_constants_are_another_function() -> None:
    assert fused(X * (0.25 * BENT)).graph.count(gelu) == 0
    assert fused(X * (0.5 * (ops.erf(X / 2.0) + 1.0))).graph.count(gelu) == 0

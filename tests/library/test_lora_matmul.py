"""lora_matmul: a matmul plus its low-rank update."""

from __future__ import annotations

import pytest

from dovetail import Value
from dovetail.dtypes import f16, f32
from dovetail.graphs import TensorType
from dovetail.ir.leaf import input, param, scalar_of
from dovetail.library.lora_matmul import Scaled, lora_matmul
from tests.library.judge import fused, near, numbers, only_miss, run

W, A, B = param("w", f32[16, 24]), param("a", f32[16, 4]), param("b", f32[4, 24])


@pytest.mark.parametrize("shape", [f32[6, 16], f32[2, 3, 16], f32[2, 3, 5, 16]], ids=str)
@pytest.mark.parametrize("scale", [0.25, None])
def test_any_leading_axes_with_and_without_scale(shape: TensorType, scale: float | None) -> None:
    x = input("x", shape)
    late = (x @ A) @ B if scale is None else ((x @ A) @ B) * scale
    early = (x @ A if scale is None else scale * (x @ A)) @ B
    narrow: Scaled = "update" if scale is None else "narrow"
    cases: list[tuple[Value, Scaled]] = [(x @ W + late, "update"), (late + x @ W, "update"), (x @ W + early, narrow)]
    for spelled, scaled in cases:
        result = fused(spelled)
        assert result.graph.outputs["y"] is lora_matmul(x, W, A, B, scale=scale, scaled=scaled)
        arrays = numbers(result.graph)
        weights = arrays["w"] + (scale or 1.0) * arrays["a"] @ arrays["b"]
        near(run(result.graph, arrays)["y"], arrays["x"] @ weights)


def test_the_scale_has_the_dtype_of_x() -> None:
    x, w, a, b = input("x", f16[6, 16]), *(param(v.attrs["name"], f16[v.shape]) for v in (W, A, B))
    value = fused(x @ w + ((x @ a) @ b) * 0.1).graph.outputs["y"]
    assert value.op is lora_matmul
    scale = lora_matmul.expansion(value.operands, value.attrs).operands[1].operands[1]
    assert scale.dtype is f16
    assert scalar_of(scale) == value.attrs["scale"]


def test_two_inputs_are_no_lora() -> None:
    x, z = input("x", f32[6, 16]), input("z", f32[6, 16])
    assert fused(x @ W + (z @ A) @ B).graph.count(lora_matmul) == 0


@pytest.mark.parametrize(
    ("w", "a", "b", "reason"),
    [
        (param("w", f32[2, 16, 24]), A, B, "weights_are_matrices"),
        (W, param("a", f32[2, 16, 4]), B, "weights_are_matrices"),
        (W, A, param("b", f32[2, 4, 24]), "weights_are_matrices"),
        (W, A, param("b", f32[4, 1]), "update_is_as_wide_as_the_weight"),
        (param("w", f32[16, 1]), A, B, "update_is_as_wide_as_the_weight"),
    ],
)
def test_what_it_refuses(w: Value, a: Value, b: Value, reason: str) -> None:
    x = input("x", f32[6, 16])
    result = fused(x @ w + (x @ a) @ b, [lora_matmul])
    assert only_miss(result) == ("lora_matmul", reason)
    arrays = numbers(result.graph)
    expected = arrays["x"] @ arrays["w"] + (arrays["x"] @ arrays["a"]) @ arrays["b"]
    near(run(result.graph, arrays)["y"], expected)

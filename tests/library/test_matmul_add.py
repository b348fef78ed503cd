"""matmul_add: a matmul that adds to a tensor of its own shape."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.graphs import TensorType
from dovetail.ir.leaf import input, param
from dovetail.library.matmul_add import matmul_add
from tests.library.judge import fused, near, numbers, only_miss, run

X, W, D = input("x", f32[2, 6, 8]), param("w", f32[8, 5]), input("d", f32[2, 6, 5])
TURNED_X, TURNED_W = input("xt", f32[2, 8, 6]), param("wt", f32[5, 8])


def turned(x: Value) -> Value:
    return ops.permute(x, order=(-1, -2))


@pytest.mark.parametrize(("turn_x", "turn_w"), list(product((False, True), repeat=2)))
def test_with_either_operand_turned(turn_x: bool, turn_w: bool) -> None:
    x, w = TURNED_X if turn_x else X, TURNED_W if turn_w else W
    made = (turned(x) if turn_x else x) @ (turned(w) if turn_w else w)
    for spelled in (made + D, D + made):
        result = fused(spelled)
        assert result.graph.outputs["y"] is matmul_add(x, w, D, transpose_x=turn_x, transpose_w=turn_w)
        assert result.graph.count() == 4
        arrays = numbers(result.graph)
        left = arrays[x.attrs["name"]].swapaxes(-1, -2) if turn_x else arrays["x"]
        right = arrays["wt"].T if turn_w else arrays["w"]
        near(run(result.graph, arrays)["y"], np.einsum("bmk,kn->bmn", left, right) + arrays["d"])


def test_a_matmul_plus_itself() -> None:
    made = X @ W
    result = fused(made + made)
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], 2 * np.einsum("bmk,kn->bmn", arrays["x"], arrays["w"]))


def test_two_matmuls() -> None:
    z, v = input("z", f32[2, 6, 3]), param("v", f32[3, 5])
    result = fused((X @ W) + (z @ v))
    assert result.graph.count(matmul_add) == 1
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], arrays["x"] @ arrays["w"] + arrays["z"] @ arrays["v"])


def test_batched_weights_are_welcome() -> None:
    w = input("w", f32[2, 8, 5])
    assert fused(X @ w + D).graph.outputs["y"] is matmul_add(X, w, D)


@pytest.mark.parametrize("other", [f32[5], f32[6, 5], f32[2, 1, 5], f32[3, 2, 6, 5], f32[()]], ids=str)
def test_what_it_refuses(other: TensorType) -> None:
    d = input("d", other)
    result = fused(X @ W + d, [matmul_add])
    assert only_miss(result) == ("matmul_add", "addend_has_the_product_shape")
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], arrays["x"] @ arrays["w"] + arrays["d"])


def test_a_product_that_the_add_would_stretch() -> None:
    x, d = input("x", f32[1, 8]), input("d", f32[6, 5])
    result = fused(x @ W + d, [matmul_add])
    assert only_miss(result) == ("matmul_add", "addend_has_the_product_shape")
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], arrays["x"] @ arrays["w"] + arrays["d"])


def test_a_product_that_is_an_output_too() -> None:
    made = X @ W
    result = fused({"y": made + D, "product": made})
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["product"], arrays["x"] @ arrays["w"])
    near(got["y"], arrays["x"] @ arrays["w"] + arrays["d"])

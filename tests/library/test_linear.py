"""linear: a matmul with bias and activation in its epilogue."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.derive.fuse import fuse
from dovetail.dtypes import f32
from dovetail.ir.graph import Graph
from dovetail.ir.leaf import input, param
from dovetail.library import ALL
from dovetail.library.activation import Activation, activation
from dovetail.library.gelu import gelu
from dovetail.library.linear import linear
from tests.library import judge
from tests.library.judge import fused, names, near, numbers, only_miss, run

X, W, B = input("x", f32[4, 15, 384]), param("w", f32[384, 1536]), param("b", f32[1536])
SMALL, V, C = input("s", f32[2, 3, 4]), param("v", f32[4, 5]), param("c", f32[5])


def test_bias_and_gelu_leave_4_nodes_of_6() -> None:
    before = Graph.of(gelu(X @ W + B))
    after = fuse(before, ALL).graph
    assert (before.count(), after.count()) == (6, 4)
    assert after.outputs["y"] is linear(X, W, B, act="gelu")


def test_without_activation_4_nodes_are_left() -> None:
    result = fused(X @ W + B)
    assert result.graph.count() == 4
    assert result.graph.outputs["y"] is linear(X, W, B)


def test_an_activation_that_no_kernel_takes_stays_outside() -> None:
    before = Graph.of(ops.exp(X @ W + B))
    result = fuse(before, ALL, near=True)
    assert (before.count(), result.graph.count()) == (6, 5)
    assert result.graph.outputs["y"] is ops.exp(linear(X, W, B))
    (missed,) = (m for m in result.missed if m.rule == "linear")
    assert "found exp" in missed.message
    assert "relu" in missed.message


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        ("relu", judge.relu),
        ("gelu", judge.gelu),
        ("gelu_tanh", judge.gelu_tanh),
        ("silu", judge.silu),
        ("tanh", np.tanh),
        ("sigmoid", judge.sigmoid),
        ("relu6", judge.relu6),
        ("hard_sigmoid", judge.hard_sigmoid),
        ("hard_swish", judge.hard_swish),
    ],
)
def test_every_activation_with_and_without_bias(act: Activation, expected: judge.Formula) -> None:
    for bias in (C, None):
        product = SMALL @ V if bias is None else bias + SMALL @ V
        result = fused(activation(act, product))
        assert result.graph.outputs["y"] is linear(SMALL, V, bias, act=act)
        arrays = numbers(result.graph)
        y = np.einsum("bik,kn->bin", arrays["s"], arrays["v"]) + (0 if bias is None else arrays["c"])
        near(run(result.graph, arrays)["y"], expected(y))


def test_a_bare_matmul_is_neither_fused_nor_missed() -> None:
    result = fused(X @ W)
    assert (result.applied, result.missed) == ((), ())


@pytest.mark.parametrize(
    ("x", "w", "b", "reason"),
    [
        (SMALL, V, param("b", f32[()]), "bias_is_a_vector"),
        (SMALL, V, param("b", f32[1]), "bias_is_a_vector"),
        (SMALL, V, param("b", f32[3, 5]), "bias_is_a_vector"),
        (SMALL, param("w", f32[4, 1]), param("b", f32[7]), "bias_is_a_vector"),
        (SMALL, param("w", f32[2, 4, 5]), C, "weight_is_a_matrix"),
    ],
    ids=["scalar", "one number", "matrix", "wider than the product", "batched weights"],
)
def test_what_it_refuses(x: Value, w: Value, b: Value, reason: str) -> None:
    result = fused(x @ w + b, [linear])
    assert only_miss(result) == ("linear", reason)
    assert names(result.graph) == ["matmul", "add"]
    arrays = numbers(result.graph)
    product = np.matmul(arrays[x.attrs["name"]], arrays[w.attrs["name"]])
    near(run(result.graph, arrays)["y"], product + arrays[b.attrs["name"]])


def test_a_bias_of_length_1_fits_a_product_of_one_column() -> None:
    w, b = param("w", f32[4, 1]), param("b", f32[1])
    assert fused(SMALL @ w + b).graph.outputs["y"] is linear(SMALL, w, b)


def test_a_matmul_that_is_an_output_too_keeps_its_value() -> None:
    product = SMALL @ V
    result = fused({"y": ops.relu(product + C), "product": product})
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    wanted = np.einsum("bik,kn->bin", arrays["s"], arrays["v"])
    near(got["product"], wanted)
    near(got["y"], judge.relu(wanted + arrays["c"]))


def test_a_bias_declared_after_its_reader() -> None:
    product = X @ W
    late = param("late", f32[1536])
    assert fused(late + product).graph.outputs["y"] is linear(X, W, late)


def test_symbolic_rows_and_columns() -> None:
    x, w, b = input("x", f32["b", "s", "k"]), param("w", f32["k", "n"]), param("b", f32["n"])
    assert fused(ops.relu(x @ w + b)).graph.outputs["y"] is linear(x, w, b, act="relu")
    other = param("b", f32["m"])
    assert only_miss(fused(x @ w + other, [linear])) == ("linear", "bias_is_a_vector")

"""swiglu, geglu and reglu: from two matmuls, from one wide one, and from two halves of any tensor."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.derive.fuse import fuse
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.library import ALL
from dovetail.library.activation import Gate, activation
from dovetail.library.gated_product import Half, gated_product
from dovetail.library.silu import silu
from dovetail.library.swiglu import swiglu
from dovetail.library.wide_swiglu import wide_swiglu
from tests.library import judge
from tests.library.judge import fused, names, near, numbers, only_miss, run

X, UP, GATE = input("x", f32[60, 64]), param("up", f32[64, 128]), param("gate", f32[64, 128])
WIDE, B = param("wide", f32[64, 256]), param("b", f32[256])
FORMULAS: dict[Gate, judge.Formula] = {
    "silu": judge.silu,
    "gelu": judge.gelu,
    "gelu_tanh": judge.gelu_tanh,
    "relu": judge.relu,
}
GATES: tuple[Gate, ...] = ("silu", "gelu", "gelu_tanh", "relu")
HALVES: tuple[Half, ...] = ("first", "second")


def half(y: Value, index: int, *, axis: int = -1, parts: int = 2) -> Value:
    return ops.part(y, axis=axis, index=index, parts=parts)


@pytest.mark.parametrize("act", GATES)
def test_two_matmuls_in_either_order(act: Gate) -> None:
    for spelled in ((X @ UP) * activation(act, X @ GATE), activation(act, X @ GATE) * (X @ UP)):
        result = fused(spelled)
        assert result.graph.outputs["y"] is swiglu(X, UP, GATE, act=act)
        assert result.graph.count() <= 6
        arrays = numbers(result.graph)
        expected = np.einsum("mk,kn->mn", arrays["x"], arrays["up"])
        near(run(result.graph, arrays)["y"], expected * FORMULAS[act](arrays["x"] @ arrays["gate"]))


def test_silu_spelled_out_becomes_a_swiglu_too() -> None:
    gate = X @ GATE
    assert fused((X @ UP) * (ops.sigmoid(gate) * gate)).graph.outputs["y"] is swiglu(X, UP, GATE)


def test_the_narrow_form_loses_3_nodes() -> None:
    y = input("y", f32[60, 4096])
    before = Graph.of(half(y, 0) * silu(half(y, 1)))
    after = fuse(before, ALL).graph
    assert before.count() - after.count() == 3
    assert after.outputs["y"] is gated_product(y)


@pytest.mark.parametrize("act", GATES)
@pytest.mark.parametrize("gate", HALVES)
def test_either_order_of_halves_and_of_the_product(act: Gate, gate: Half) -> None:
    y = input("y", f32[3, 5, 8])
    at = HALVES.index(gate)
    for spelled in (half(y, 1 - at) * activation(act, half(y, at)), activation(act, half(y, at)) * half(y, 1 - at)):
        result = fused(spelled)
        assert result.graph.outputs["y"] is gated_product(y, act=act, gate=gate)
        arrays = numbers(result.graph)
        halves = arrays["y"][..., :4], arrays["y"][..., 4:]
        near(run(result.graph, arrays)["y"], halves[1 - at] * FORMULAS[act](halves[at]))


@pytest.mark.parametrize("gate", HALVES)
@pytest.mark.parametrize("bias", [B, None], ids=["bias", "no bias"])
def test_an_already_wide_matmul(gate: Half, bias: Value | None) -> None:
    y = X @ WIDE if bias is None else X @ WIDE + bias
    at = HALVES.index(gate)
    result = fused(half(y, 1 - at) * silu(half(y, at)))
    assert result.graph.outputs["y"] is wide_swiglu(X, WIDE, bias, gate=gate)
    arrays = numbers(result.graph)
    product = arrays["x"] @ arrays["wide"] + (0 if bias is None else arrays["b"])
    halves = product[:, :128], product[:, 128:]
    near(run(result.graph, arrays)["y"], halves[1 - at] * judge.silu(halves[at]))


def test_another_reader_of_the_gate_and_the_up_product() -> None:
    up, gate = X @ UP, X @ GATE
    result = fused({"y": up * silu(gate), "gate": gate, "up": ops.exp(up)})
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    left, right = arrays["x"] @ arrays["up"], arrays["x"] @ arrays["gate"]
    near(got["y"], left * judge.silu(right))
    near(got["gate"], right)
    near(got["up"], np.exp(left))


def test_another_reader_of_a_half() -> None:
    y = input("y", f32[60, 4096])
    result = fused({"y": half(y, 0) * silu(half(y, 1)), "half": half(y, 1), "next": ops.exp(half(y, 0))})
    assert result.graph.outputs["y"] is gated_product(y)
    arrays = numbers(result.graph)
    got = run(result.graph, arrays)
    near(got["y"], arrays["y"][:, :2048] * judge.silu(arrays["y"][:, 2048:]))
    near(got["half"], arrays["y"][:, 2048:])
    near(got["next"], np.exp(arrays["y"][:, :2048]))


def test_one_weight_for_both() -> None:
    product = X @ UP
    result = fused(product * silu(product))
    arrays = numbers(result.graph)
    expected = arrays["x"] @ arrays["up"]
    near(run(result.graph, arrays)["y"], expected * judge.silu(expected))


@pytest.mark.parametrize(
    ("up", "gate", "reason"),
    [
        (UP, param("g", f32[64, 1]), "weights_are_equally_wide"),
        (param("u", f32[64, 1]), GATE, "weights_are_equally_wide"),
        (param("u", f32[2, 64, 128]), GATE, "weights_are_matrices"),
        (UP, param("g", f32[2, 64, 128]), "weights_are_matrices"),
    ],
    ids=["narrow gate", "narrow up", "batched up", "batched gate"],
)
def test_what_it_refuses(up: Value, gate: Value, reason: str) -> None:
    result = fused((X @ up) * silu(X @ gate), [swiglu])
    assert only_miss(result) == ("swiglu", reason)
    arrays = numbers(result.graph)
    left, right = (np.matmul(arrays["x"], arrays[w.attrs["name"]]) for w in (up, gate))
    near(run(result.graph, arrays)["y"], left * judge.silu(right))


def test_two_inputs_are_no_swiglu() -> None:
    z = input("z", f32[60, 64])
    assert fused((z @ UP) * silu(X @ GATE)).graph.count(swiglu) == 0


def test_what_are_no_two_halves() -> None:
    y = input("y", f32[6, 12])
    for spelled in (
        half(y, 0, parts=3) * silu(half(y, 1, parts=3)),
        half(y, 0, axis=-2) * silu(half(y, 1, axis=-2)),
        half(y, 1) * silu(half(y, 1)),
        ops.slice_(y, axis=-1, start=0, stop=5) * silu(ops.slice_(y, axis=-1, start=6, stop=11)),
        half(y, 0) * silu(half(input("z", f32[6, 12]), 1)),
    ):
        result = fused(spelled)
        assert "gated_product" not in names(result.graph)
        assert not result.missed


@pytest.mark.parametrize(
    ("w", "b", "reason"),
    [
        (param("w", f32[2, 64, 256]), B, "weight_is_a_matrix"),
        (WIDE, param("c", f32[60, 256]), "bias_is_a_vector"),
        (WIDE, param("c", f32[1]), "bias_is_a_vector"),
    ],
)
def test_what_the_wide_form_refuses(w: Value, b: Value, reason: str) -> None:
    y = X @ w + b
    result = fused(half(y, 0) * silu(half(y, 1)), [wide_swiglu])
    assert only_miss(result) == ("wide_swiglu", reason)
    arrays = numbers(result.graph)
    product = np.matmul(arrays["x"], arrays[w.attrs["name"]]) + arrays[b.attrs["name"]]
    near(run(result.graph, arrays)["y"], product[..., :128] * judge.silu(product[..., 128:]))

"""attention_block: the projections around attention, in one kernel for few rows and apart for many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.declare import Machine
from dovetail.dtypes import f32
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.leaf import input, param
from dovetail.library.attention_block import attention_block
from dovetail.targets.cpu.claims import CLAIMS as CPU
from tests.library.attending import (
    LOWEST,
    Array,
    angles,
    attend,
    causal,
    feeds,
    found,
    heads_of,
    joined_heads,
    near,
    recognised,
    rotate,
    run,
)

B, S, H, D = 2, 4, 4, 8
E = H * D
X = input("x", f32[B, S, E])
SCALE = 0.25


def split(x: Value, heads: int) -> Value:
    return ops.permute(ops.split(x, axis=-1, parts=heads), order=(-2, -3, -1))


def attended(q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
    scores = (q @ ops.permute(k, order=(-1, -2))) * SCALE
    raised = scores if mask is None else scores + mask
    raised = ops.exp(raised - ops.reduce_max(raised, axes=(-1,)))
    return (raised / ops.reduce_sum(raised, axes=(-1,))) @ v


def out(x: Value, wo: Value) -> Value:
    return ops.merge(ops.permute(x, order=(-2, -3, -1)), axis=-1) @ wo


def joined(x: Value, mask: Value | None = None, *, bias: bool = True, width: int = 3 * E) -> Value:
    """One projection for queries, keys and values, cut in three."""
    hidden = x.shape[-1]
    y = x @ param("w", f32[hidden, width])
    if bias:
        y = y + param("b", f32[width])
    third = width // 3
    cuts = [ops.slice_(y, axis=-1, start=i * third, stop=(i + 1) * third) for i in range(3)]
    q, k, v = (split(c, H) for c in cuts)
    y = out(attended(q, k, v, mask), param("wo", f32[third, hidden]))
    return y + param("bo", f32[hidden]) if bias else y


def expected(x: Array, w: Array, wo: Array, b: Array | float = 0.0, bo: Array | float = 0.0, **how: Any) -> Array:
    q, k, v = (heads_of(part, H) for part in np.split(x @ w + b, 3, axis=-1))
    return joined_heads(attend(q, k, v, scale=SCALE, **how)) @ wo + bo


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("masked", (False, True))
def test_a_joined_projection_collapses_to_one_node(bias: bool, masked: bool) -> None:
    mask = input("mask", f32[B, 1, 1, S]) if masked else None
    result = recognised(joined(X, mask, bias=bias), machine=CPU.machine)
    assert [v.op.name for v in result.graph.values if v.operands] == ["attention_block"]
    arrays = feeds(result.graph)
    added = arrays.pop("mask") if masked else 0.0
    want = expected(**arrays, added=added)
    near(run(result.graph, {**arrays, "mask": np.asarray(added)})["y"], want)


def separate(x: Value, kv_heads: int, *, bias: bool) -> Value:
    """A projection each, with positions turned in and keys seen up to the own one."""
    groups = H // kv_heads
    hidden = x.shape[-1]
    cos, sin = input("cos", f32[S, D]), input("sin", f32[S, D])

    def project(name: str, heads: int) -> Value:
        y = x @ param(f"w{name}", f32[hidden, heads * D])
        return split(y + param(f"b{name}", f32[heads * D]) if bias else y, heads)

    def turned(y: Value) -> Value:
        first, second = (ops.part(y, axis=-1, index=i, parts=2) for i in (0, 1))
        return y * cos + ops.concat(-second, first, axis=-1) * sin

    def widened(y: Value) -> Value:
        if groups == 1:
            return y
        return ops.merge(ops.expand(ops.unsqueeze(y, axes=(-3,)), axis=-3, size=groups), axis=-3)

    q, k, v = turned(project("q", H)), turned(project("k", kv_heads)), project("v", kv_heads)
    seen = ops.less_equal(ops.iota(size=S), ops.unsqueeze(ops.iota(size=S), axes=(-1,)))
    mask = ops.where(seen, leaf.scalar(0.0, f32), leaf.scalar(LOWEST, f32))
    return out(attended(q, widened(k), widened(v), mask), param("wo", f32[E, hidden]))


@pytest.mark.parametrize("kv_heads", (4, 2))
@pytest.mark.parametrize("bias", (False, True))
def test_separate_projections_with_rope_and_shared_heads(kv_heads: int, bias: bool) -> None:
    spelled = separate(X, kv_heads, bias=bias)
    value = found(spelled, "attention_block", machine=CPU.machine)
    call = attention_block.of(value)
    assert (call.heads, call.kv_heads, call.causal) == (H, kv_heads, True)
    assert call.groups == (None if kv_heads == H else 2)
    graph = recognised(spelled, machine=CPU.machine).graph
    assert [v.op.name for v in graph.values if v.operands] == ["attention_block"]
    cos, sin = angles(S, D)
    arrays = feeds(graph, cos=cos, sin=sin)
    x = arrays["x"]
    q, k, v = (
        heads_of(x @ arrays[f"w{n}"] + arrays.get(f"b{n}", 0.0), h)
        for n, h in (("q", H), ("k", kv_heads), ("v", kv_heads))
    )
    want = attend(rotate(q, cos, sin), rotate(k, cos, sin), v, scale=SCALE, keep=causal(S, S))
    near(run(graph, arrays)["y"], joined_heads(want) @ arrays["wo"])


def blocks(spelled: Mapping[str, Value] | Value, machine: Machine = CPU.machine) -> int:
    return recognised(spelled, machine=machine).graph.count(attention_block)


def test_many_rows_stay_apart_by_cost() -> None:
    large = input("x", f32[16, 128, E])
    result = recognised(joined(large), machine=CPU.machine)
    assert result.graph.count(attention_block) == 0
    (missed,) = [m for m in result.missed if m.rule == "attention_block"]
    assert missed.reason == "cost"
    assert blocks(joined(X)) == 1


@pytest.mark.parametrize(("batch", "rows", "fuses"), [(1, 64, 1), (16, 4, 1), (2, 33, 0), (65, 1, 0)])
def test_what_counts_is_the_number_of_rows(batch: int, rows: int, fuses: int) -> None:
    assert blocks(joined(input("x", f32[batch, rows, E]))) == fuses


def test_a_tiny_input_beside_many_rows_switches_nothing_on() -> None:
    flag = input("flag", f32[1])
    large = joined(input("x", f32[16, 128, E]))
    assert blocks({"y": large, "flag": flag + 1.0}) == 0
    assert blocks(large * flag) == 0


def test_rows_that_are_not_known_yet_count_as_many() -> None:
    assert blocks(joined(input("x", f32["b", "s", E]))) == 0


def test_an_inner_value_that_is_read_elsewhere_keeps_it_apart() -> None:
    w = param("w", f32[E, 3 * E])
    y = X @ w
    cuts = [ops.part(y, axis=-1, index=i, parts=3) for i in range(3)]
    block = out(attended(*(split(c, H) for c in cuts)), param("wo", f32[E, E]))
    slow = Machine(flops_per_second=1e7, bytes_per_second=1e10, launch_seconds=1e-9)
    result = recognised({"y": block, "qkv": y}, machine=slow)
    assert result.graph.count(attention_block) == 0
    assert "interior_is_private" in [m.reason for m in result.missed if m.rule == "attention_block"]
    arrays = feeds(result.graph)
    got = run(result.graph, arrays)
    near(got["qkv"], arrays["x"] @ arrays["w"])
    near(got["y"], expected(**arrays))


def refused(spelled: Value) -> str:
    (missed,) = [m for m in recognised(spelled).missed if m.rule == "attention_block"]
    assert missed.message
    return missed.reason


def test_a_projection_that_is_not_three_times_as_wide() -> None:
    assert refused(joined(X, bias=False, width=3 * 2 * E)) == "projection_is_three_times_as_wide"


def test_rows_without_a_batch() -> None:
    assert refused(joined(input("x", f32[S, E]))) == "x_is_a_batch_of_rows"
    assert refused(joined(input("x", f32[2, 2, S, E]))) == "x_is_a_batch_of_rows"


def test_weights_that_differ_from_batch_to_batch() -> None:
    weights = [param(f"w{n}", f32[B, E, E]) for n in "qkv"]
    spelled = out(attended(*(split(X @ w, H) for w in weights)), param("wo", f32[E, E]))
    assert refused(spelled) == "weights_are_matrices"


def test_a_mask_for_more_batches_than_x_has() -> None:
    """Attention itself refuses it, so that there is nothing for the block to be made of."""
    mask = input("mask", f32[3, 1, 1, S])
    result = recognised(joined(input("x", f32[1, S, E]), mask))
    assert result.graph.count(attention_block) == 0
    assert [m.reason for m in result.missed if m.rule == "attention"] == ["masks_broadcast"]


def test_a_whole_attention_with_such_a_mask_is_refused_by_the_block() -> None:
    x, mask = input("x", f32[1, S, E]), input("mask", f32[3, 1, 1, S])
    spelled = attention_block.body(
        x, param("w", f32[E, 3 * E]), param("wo", f32[E, E]), mask=mask, heads=H, scale=SCALE
    )
    assert isinstance(spelled, Value)
    assert refused(spelled) == "masks_broadcast"


def test_parameters_that_belong_together() -> None:
    w, wo, cos = param("w", f32[E, E]), param("wo", f32[E, E]), input("cos", f32[S, D])
    with pytest.raises(TypeRuleError, match="sin"):
        attention_block(X, w, wo, cos=cos, heads=H)
    with pytest.raises(TypeRuleError, match="kv_heads"):
        attention_block(X, w, wo, w, w, heads=H)
    with pytest.raises(TypeRuleError, match="biases"):
        attention_block(X, w, wo, w, w, param("b", f32[E]), heads=H, kv_heads=H)

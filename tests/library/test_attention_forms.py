"""attention as ONNX's own operator, half precision and folded heads write it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import bool_, f16, f32
from dovetail.ir.leaf import input
from dovetail.library.attention import attention
from dovetail.library.softmax import softmax
from dovetail.ops import build
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.reference.interpreter import evaluate
from tests.library.attending import INF, Array, attend, feeds, found, near, plain_softmax, recognised, run, swap

B, H, S, D = 2, 4, 5, 6
SCALE = 1 / math.sqrt(D)
Q, K, V = (input(name, f32[B, H, S, D]) for name in "qkv")
KEEP, MASK = input("keep", bool_[B, 1, S, S]), input("mask", f32[B, 1, 1, S])


def scored(q: Value, k: Value) -> Value:
    return (q @ swap(k)) * SCALE


def hidden_row(shape: tuple[int, ...]) -> Array:
    """Keys that are kept, none of them in the first row."""
    keep = np.random.default_rng(1).random(shape) < 0.7
    keep[..., 0] = True
    keep[0, :, 0] = False
    return keep


@pytest.mark.parametrize("how", ["keep", "mask", "both"])
def test_queries_that_see_no_key_get_zero(how: str) -> None:
    biased = scored(Q, K)
    seen: list[Value] = []
    if how != "keep":
        biased = biased + MASK
        seen.append(ops.not_equal(MASK, -INF))
    if how != "mask":
        biased = ops.where(KEEP, biased, -INF)
        seen.insert(0, KEEP)
    sees = ops.reduce_any(seen[0] if len(seen) == 1 else ops.bit_and(*seen), axes=(-1,))
    spelled = ops.where(sees, plain_softmax(biased) @ V, 0.0)
    value = found(spelled, "attention")
    graph = recognised(spelled).graph
    assert graph.outputs["y"] is value
    assert attention.of(value).zero_unseen
    keep = hidden_row((B, 1, S, S)) if how != "mask" else np.ones((B, 1, S, S), bool)
    mask = np.where(hidden_row((B, 1, 1, S)), 0.5, -INF) if how != "keep" else np.zeros((B, 1, 1, S))
    arrays = feeds(graph, keep=keep, mask=mask)
    expected = attend(arrays["q"], arrays["k"], arrays["v"], scale=SCALE, added=mask, keep=keep, empty=0.0)
    near(run(graph, arrays)["y"], expected)


def test_a_sum_over_other_keys_is_another_question() -> None:
    other = input("other", bool_[B, 1, S, S])
    spelled = ops.where(ops.reduce_any(other, axes=(-1,)), plain_softmax(ops.where(KEEP, scored(Q, K), -INF)) @ V, 0.0)
    assert not attention.of(found(spelled, "attention")).zero_unseen


def test_a_softmax_in_f32_between_scores_and_values_of_f16() -> None:
    q, k, v = (input(name, f16[B, H, S, D]) for name in "qkv")
    weights = ops.cast(plain_softmax(ops.cast(scored(q, k), dtype=f32)), dtype=f16)
    value = found(weights @ v, "attention")
    assert attention.of(value).wide
    graph = recognised(weights @ v).graph
    arrays = {name: array.astype(np.float16) for name, array in feeds(graph).items()}
    expected = attend(*(arrays[name].astype(np.float64) for name in "qkv"), scale=SCALE)
    np.testing.assert_allclose(evaluate(graph, arrays)["y"], expected, rtol=5e-3, atol=5e-3)


def test_casts_to_f32_of_f32_make_no_wide_softmax() -> None:
    x = input("x", f32[S, S])
    spelled = ops.cast(plain_softmax(ops.cast(x, dtype=f32)), dtype=f32)
    assert recognised(spelled).graph.outputs["y"] is softmax(x)


def test_keys_and_values_that_are_expanded_over_the_batch() -> None:
    k, v = input("k", f32[1, H, S, D]), input("v", f32[1, H, S, D])
    spelled = plain_softmax(scored(Q, build.broadcast_to(k, (B, H, S, D)))) @ build.broadcast_to(v, (B, H, S, D))
    assert found(spelled, "attention").operands[:3] == (Q, k, v)
    graph = recognised(spelled).graph
    arrays = feeds(graph)
    wide = {name: np.broadcast_to(arrays[name], (B, H, S, D)) for name in "kv"}
    near(run(graph, arrays)["y"], attend(arrays["q"], wide["k"], wide["v"], scale=SCALE))


def test_heads_that_are_folded_for_the_scores_only() -> None:
    folded = scored(ops.merge(Q, axis=-3), ops.merge(K, axis=-3))
    spelled = plain_softmax(ops.split(folded, axis=-3, size=H) + MASK) @ V
    graph = recognised(spelled).graph
    assert graph.outputs["y"] is attention(Q, K, V, MASK, scale=float(np.float32(SCALE)))
    arrays = feeds(graph)
    near(
        run(graph, arrays)["y"],
        attend(arrays["q"], arrays["k"], arrays["v"], scale=SCALE, added=arrays["mask"]),
    )


def test_two_masks_are_summed_beside_the_scores() -> None:
    bias = input("bias", f32[1, H, S, S])
    for spelled in (plain_softmax((scored(Q, K) + bias) + MASK) @ V, plain_softmax(MASK + (bias + scored(Q, K))) @ V):
        value = found(spelled, "attention")
        assert attention.of(value).mask.op is ops.add
        graph = recognised(spelled).graph
        arrays = feeds(graph)
        added = arrays["bias"] + arrays["mask"]
        near(run(graph, arrays)["y"], attend(arrays["q"], arrays["k"], arrays["v"], scale=SCALE, added=added))


def test_two_masks_of_f16_are_not_summed_for_they_can_overflow() -> None:
    q, k = (input(name, f16[B, H, S, D]) for name in "qk")
    a, b = (input(name, f16[S, S]) for name in "ab")
    spelled = (scored(q, k) + a) + b
    assert canonicalize(Graph.of(spelled)).outputs["y"] is spelled


def test_a_bias_and_a_residual_stay_where_they_are() -> None:
    x, w, r = input("x", f32[B, S, D]), input("w", f32[D, D]), input("r", f32[B, S, D])
    spelled = (x @ w + input("b", f32[D])) + r
    assert canonicalize(Graph.of(spelled)).outputs["y"] is spelled

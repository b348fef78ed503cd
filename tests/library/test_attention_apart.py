"""attention that older models spell with heads joined to batches or rows, and with masks that are clipped or scaled."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import bool_, f32, i64
from dovetail.ir import leaf
from dovetail.ir.leaf import input
from dovetail.library.attention import attention
from tests.library.attending import (
    LOWEST,
    added_mask,
    attend,
    causal,
    check,
    feeds,
    found,
    heads_of,
    near,
    plain_softmax,
    qkv,
    recognised,
    run,
    swap,
)

B, H, S, D = 2, 4, 5, 6
SCALE = 0.5
Q, K, V = (input(name, f32[B, H, S, D]) for name in "qkv")
KEEP = input("keep", bool_[B, 1, 1, S])


def joined(x: Value) -> Value:
    """Heads as batches."""
    return ops.merge(x, axis=-3)


def apart(x: Value) -> Value:
    return ops.split(x, axis=-3, parts=B)


def sees() -> Value:
    """Keys up to the query's own position."""
    keys = ops.iota(size=S)
    return ops.less(keys, ops.unsqueeze(keys + 1, axes=(-1,)))


def test_bart_joins_heads_to_batches_before_and_after_the_mask() -> None:
    scores = joined(Q * SCALE) @ swap(joined(K))
    weights = plain_softmax(joined(apart(scores) + added_mask(KEEP)))
    check(apart(weights @ joined(V)), lambda a: qkv(a, scale=SCALE, added=np.where(a["keep"], 0.0, LOWEST)))


def test_bloom_adds_a_slope_to_joined_heads() -> None:
    slope = input("slope", f32[B, H, S])
    scores = joined(Q) @ swap(joined(K)) * SCALE + ops.unsqueeze(ops.merge(slope, axis=-2), axes=(-2,))
    mask = added_mask(ops.bit_and(sees(), KEEP))
    seen = causal(S, S)
    check(
        plain_softmax(apart(scores) + mask) @ V,
        lambda a: qkv(a, scale=SCALE, added=a["slope"][:, :, None] + np.where(seen & a["keep"], 0.0, LOWEST)),
    )


def test_heads_that_share_keys_are_joined_to_the_rows() -> None:
    q, k, v = input("q", f32[B, S, H, D]), input("k", f32[B, S, D]), input("v", f32[B, S, D])
    keep = input("keep", bool_[B, S, 1, S])
    scores = ops.split(ops.merge(q, axis=-2) @ swap(k) * SCALE, axis=-2, parts=S)
    weights = plain_softmax(ops.where(keep, scores, LOWEST))
    check(
        ops.split(ops.merge(weights, axis=-2) @ v, axis=-2, parts=S),
        lambda a: attend(
            a["q"], a["k"][:, None].repeat(S, 1), a["v"][:, None].repeat(S, 1), scale=SCALE, keep=a["keep"], fill=LOWEST
        ),
    )


def test_the_mask_is_added_before_the_scale() -> None:
    value = check(
        plain_softmax((Q @ swap(K) + added_mask(ops.bit_and(sees(), KEEP))) / 2.0) @ V,
        lambda a: qkv(a, scale=0.5, added=np.where(causal(S, S) & a["keep"], 0.0, LOWEST / 2)),
    )
    assert attention.of(value).causal


def test_the_scale_is_on_queries_before_heads_are_seen() -> None:
    rows = input("q", f32[B, S, H * D])
    q = ops.permute(ops.split(rows * SCALE, axis=-1, parts=H), order=(-2, -3, -1))
    value = check(plain_softmax(q @ swap(K)) @ V, lambda a: attend(heads_of(a["q"], H), a["k"], a["v"], scale=SCALE))
    assert attention.of(value).scale == SCALE


@pytest.mark.parametrize("hidden", [False, True])
def test_opt_clips_the_sum_of_two_masks(hidden: bool) -> None:
    """Where both hide a key the sum is -inf, and a row that sees none would be NaN."""
    padding = 1.0 - ops.cast(ops.unsqueeze(input("mask", i64[B, S]), axes=(-3, -2)), dtype=f32)
    padding = ops.where(ops.cast(padding, dtype=bool_), leaf.scalar(LOWEST, f32), padding)
    scores = (Q @ swap(K)) * SCALE + (padding + added_mask(sees()))
    given = np.ones((B, S), np.int64)
    given[1, : 3 if hidden else 0] = 0
    spelled = plain_softmax(ops.maximum(scores, LOWEST)) @ V
    assert attention.of(found(spelled, "attention")).causal
    graph = recognised(spelled).graph
    arrays = feeds(graph, mask=given)
    seen = causal(S, S) & (given == 1)[:, None, None]
    near(run(graph, arrays)["y"], qkv(arrays, scale=SCALE, keep=seen, fill=LOWEST))

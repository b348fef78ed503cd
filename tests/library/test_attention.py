"""attention with scales, heads and layouts as exporters write them, judged query by query in plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import bool_, f16, f32
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.leaf import input
from dovetail.library.attention import attention
from dovetail.library.softmax import softmax
from dovetail.match import fits
from tests.library.attending import (
    INF,
    LOWEST,
    added_mask,
    attend,
    check,
    feeds,
    found,
    heads_of,
    near,
    plain_softmax,
    qkv,
    recognised,
    refusal,
    run,
    swap,
    widen,
)

B, H, SQ, SK, D = 2, 4, 3, 5, 6
SCALE = 1 / math.sqrt(D)
Q, K, V = input("q", f32[B, H, SQ, D]), input("k", f32[B, H, SK, D]), input("v", f32[B, H, SK, D])
S = 5
"""How long a sequence is that attends to itself."""
QS, KS, VS = (input(name, f32[B, H, S, D]) for name in "qkv")


SCALES: dict[str, Callable[[Value, Value], Value]] = {
    "times": lambda q, k: (q @ swap(k)) * SCALE,
    "number first": lambda q, k: SCALE * (q @ swap(k)),
    "divided": lambda q, k: (q @ swap(k)) / math.sqrt(D),
    "on the queries": lambda q, k: (q * SCALE) @ swap(k),
    "queries divided": lambda q, k: (q / math.sqrt(D)) @ swap(k),
    "root on both sides": lambda q, k: (q * math.sqrt(SCALE)) @ (swap(k) * math.sqrt(SCALE)),
    "as shape [1]": lambda q, k: (q @ swap(k)) * leaf.constant(np.array([SCALE], np.float32)),
}


@pytest.mark.parametrize("where", SCALES)
def test_the_scale_may_stand_anywhere(where: str) -> None:
    value = check(
        plain_softmax(SCALES[where](Q, K)) @ V,
        lambda a: qkv(a, scale=SCALE),
        mask=None,
        keep=None,
        causal=False,
        groups=None,
    )
    assert attention.of(value).scale == pytest.approx(SCALE, rel=2e-7)


def test_two_roots_that_differ_are_two_scales() -> None:
    scores = (Q * 0.5) @ (swap(K) * 0.25)
    graph = recognised(plain_softmax(scores) @ V).graph
    arrays = feeds(graph)
    near(run(graph, arrays)["y"], qkv(arrays, scale=0.125))


def test_without_a_scale() -> None:
    check(softmax(Q @ swap(K)) @ V, lambda a: qkv(a), scale=None)


def test_keys_straight_from_the_projection() -> None:
    rows = input("rows", f32[B, SK, H * D])
    columns = ops.permute(ops.split(rows, axis=-1, parts=H), order=(-2, -1, -3))
    value = check(
        plain_softmax((Q @ columns) * SCALE) @ V,
        lambda a: attend(a["q"], heads_of(a["rows"], H), a["v"], scale=SCALE),
    )
    # However they came to be columns, the keys are handed over as rows.
    assert attention.of(value).k is ops.permute(ops.split(rows, axis=-1, parts=H), order=(-2, -3, -1))


def test_keys_on_a_detour_through_three_axes() -> None:
    around = ops.split(swap(ops.merge(K, axis=-3)), axis=-3, parts=B)
    value = check(plain_softmax((Q @ around) * SCALE) @ V, lambda a: qkv(a, scale=SCALE))
    assert attention.of(value).k is K


def test_one_head_of_keys_for_all() -> None:
    k, v = input("k", f32[B, 1, SK, D]), input("v", f32[B, 1, SK, D])
    check(softmax((Q @ swap(k)) * SCALE) @ v, lambda a: qkv(a, scale=SCALE))


@pytest.mark.parametrize("groups", [None, H])
def test_one_head_of_keys_that_is_repeated(groups: int | None) -> None:
    """Neither the body of an attention nor an exporter's own repetition stands in the way."""
    k, v = input("k", f32[B, 1, SK, D]), input("v", f32[B, 1, SK, D])
    repeated = [ops.expand(x, axis=-3, size=H) for x in (k, v)] if groups is None else [k, v]
    check(attention.body(Q, *repeated, scale=SCALE, groups=groups), lambda a: qkv(a, scale=SCALE))


@pytest.mark.parametrize("lead", ((), (2,), (2, 2)))
def test_any_leading_axes(lead: tuple[int, ...]) -> None:
    q, k, v = (input(n, f32[(*lead, H, s, D)]) for n, s in (("q", SQ), ("k", SK), ("v", SK)))
    spelled = softmax((q @ swap(k)) * SCALE) @ v
    assert found(spelled, "attention") is attention(q, k, v, scale=float(np.float32(SCALE)))


def test_symbolic_sizes() -> None:
    q, k, v = (input(n, f32["b", 4, "s", 8]) for n in "qkv")
    keys, queries = (ops.unsqueeze(ops.iota(size=q.shape[-2]), axes=(-4, -3, a)) for a in (-2, -1))
    spelled = softmax((q @ swap(k)) * 0.25 + added_mask(ops.less_equal(keys, queries))) @ v
    assert found(spelled, "attention") is attention(q, k, v, scale=0.25, causal=True, fill=LOWEST, filled="added")


def test_half_precision() -> None:
    q, k, v = (input(n, f16[1, 2, 4, 8]) for n in "qkv")
    keep = input("keep", bool_[1, 1, 4, 4])
    spelled = softmax(ops.where(keep, (q @ swap(k)) * 0.25, -65504.0)) @ v
    assert found(spelled, "attention") is attention(q, k, v, None, keep, scale=0.25, fill=-65504.0)


def test_weights_that_are_an_output_keep_their_value() -> None:
    weights = softmax((Q @ swap(K)) * SCALE)
    graph = recognised({"weights": weights, "y": weights @ V}).graph
    arrays = feeds(graph)
    got = run(graph, arrays)
    near(got["y"], qkv(arrays, scale=SCALE))
    raised = np.exp(np.einsum("bhid,bhjd->bhij", arrays["q"], arrays["k"]) * np.float32(SCALE))
    near(got["weights"], raised / raised.sum(-1, keepdims=True))


# What refuses, by name.


def test_a_batch_that_only_the_queries_have() -> None:
    k = input("k", f32[1, H, SK, D])
    reason, message = refusal(softmax((Q @ swap(k)) * SCALE) @ V)
    assert reason == "leading_axes_agree"
    assert "f32[1, 4, 5, 6]" in message


def test_a_batch_that_only_keys_and_values_have() -> None:
    q = input("q", f32[1, H, SQ, D])
    mask = input("mask", f32[B, 1, 1, SK])
    spelled = softmax((q @ swap(K)) * 0.25 + mask) @ V
    assert found(spelled, "attention") is attention(q, K, V, mask, scale=0.25)


def test_values_with_other_heads_than_keys() -> None:
    v = input("v", f32[B, 1, SK, D])
    assert refusal(softmax((Q @ swap(K)) * SCALE) @ v)[0] == "heads_divide"


def test_grouped_keys_and_values_that_are_not() -> None:
    k = input("k", f32[B, 2, SK, D])
    spelled = softmax((Q @ swap(widen(k, 2))) * SCALE) @ V
    graph = recognised(spelled).graph
    arrays = feeds(graph)
    near(
        run(graph, arrays)["y"],
        attend(arrays["q"], np.repeat(arrays["k"], 2, axis=1), arrays["v"], scale=SCALE),
    )


def test_a_mask_with_more_than_the_scores() -> None:
    q, k, v = (input(n, f32[1, H, S, D]) for n in "qkv")
    mask = input("mask", f32[3, 1, S, S])
    reason, message = refusal(softmax((q @ swap(k)) * SCALE + mask) @ v)
    assert reason == "masks_broadcast"
    assert "f32[3, 4, 5, 6]" in message


# What goes together.


def test_options_that_do_not_go_together() -> None:
    for options, words in (
        ({"softcap": 30.0}, "softcap"),
        ({"window": 2}, "window"),
        ({"causal": True}, "fill"),
        ({"fill": -INF}, "fill"),
        ({"causal": True, "fill": -INF, "filled": "first"}, "filled"),
        ({"filled": "added"}, "added"),
    ):
        with pytest.raises(TypeRuleError, match=words):
            attention(QS, KS, VS, **options)  # type: ignore[arg-type]


def test_variants_stay_few_and_other_matmuls_are_refused_at_a_glance() -> None:
    assert len(attention.variants) <= 256
    x, w = input("x", f32[2, 3, 4]), input("w", f32[4, 5])
    for product in (x @ w, ops.relu(x) @ w, (x * 2.0) @ w):
        assert not [v for v in attention.variants if fits(v.outline, product)]

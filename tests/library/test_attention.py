"""attention from the forms that exporters write, judged query by query in plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from dovetail import TypeRuleError, Value, bool_, f16, f32, i64, ops
from dovetail.ir import leaf
from dovetail.ir.leaf import input
from dovetail.library.attention import attention
from dovetail.library.softmax import softmax
from dovetail.match import fits
from tests.library.attending import INF, LOWEST, Array, attend, causal, feeds, found, heads_of, near, recognised, run

B, H, SQ, SK, D = 2, 4, 3, 5, 6
SCALE = 1 / math.sqrt(D)
Q, K, V = input("q", f32[B, H, SQ, D]), input("k", f32[B, H, SK, D]), input("v", f32[B, H, SK, D])
S = 5
"""How long a sequence is that attends to itself."""
QS, KS, VS = (input(name, f32[B, H, S, D]) for name in "qkv")


def swap(x: Value) -> Value:
    return ops.permute(x, order=(-1, -2))


def plain_softmax(x: Value) -> Value:
    raised = ops.exp(x - ops.reduce_max(x, axes=(-1,)))
    return raised / ops.reduce_sum(raised, axes=(-1,))


def qkv(arrays: Mapping[str, Array], **how: Any) -> Array:
    return attend(arrays["q"], arrays["k"], arrays["v"], **how)


def check(spelled: Value, expected: Callable[[Mapping[str, Array]], Array], **options: object) -> Value:
    """The graph becomes one attention with these options, which computes what is expected."""
    value = found(spelled, "attention")
    graph = recognised(spelled).graph
    assert graph.outputs["y"] is value
    for name, wanted in options.items():
        assert getattr(attention.of(value), name) == wanted, name
    arrays = feeds(graph)
    near(run(graph, arrays)["y"], expected(arrays))
    return value


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


def test_old_bert_adds_its_padding() -> None:
    padding = input("padding", i64[B, SK])
    wide = ops.cast(ops.unsqueeze(ops.unsqueeze(padding, axes=(-2,)), axes=(-3,)), dtype=f32)
    mask = (1.0 - wide) * LOWEST
    spelled = plain_softmax((Q @ swap(K)) / math.sqrt(D) + mask) @ V
    graph = recognised(spelled).graph
    value = found(spelled, "attention")
    assert attention.of(value).mask.shape == (B, 1, 1, SK)
    seen = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    arrays = feeds(graph, padding=seen)
    expected = qkv(arrays, scale=SCALE, keep=seen[:, None, None, :] == 1)
    near(run(graph, arrays)["y"], expected)


def test_new_bert_makes_a_mask_of_bools_and_adds_it() -> None:
    keep = input("keep", bool_[B, 1, 1, SK])
    mask = ops.where(keep, leaf.scalar(0.0, f32), leaf.scalar(LOWEST, f32))
    check(
        plain_softmax(mask + SCALE * (Q @ swap(K))) @ V,
        lambda a: qkv(a, scale=SCALE, keep=a["keep"]),
        keep=None,
    )


def test_distilbert_fills_in_where_keys_are_hidden() -> None:
    padding = input("padding", i64[B, SK])
    hidden = ops.unsqueeze(ops.equal(padding, 0), axes=(-3, -2))
    whole = ops.expand(ops.expand(hidden, axis=-2, size=SQ), axis=-3, size=H)
    scores = (Q / math.sqrt(D)) @ swap(K)
    spelled = plain_softmax(ops.where(whole, LOWEST, scores)) @ V
    value = found(spelled, "attention")
    assert attention.of(value).fill == LOWEST
    assert attention.of(value).keep.dtype is bool_
    graph = recognised(spelled).graph
    seen = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    arrays = feeds(graph, padding=seen)
    expected = qkv(arrays, scale=SCALE, keep=seen[:, None, None, :] != 0)
    near(run(graph, arrays)["y"], expected)


def stored_triangle() -> Value:
    """A triangle for up to 8 positions, cut to the sequence."""
    triangle = leaf.constant(np.tril(np.ones((1, 1, 8, 8), np.bool_)))
    return ops.slice_(ops.slice_(triangle, axis=-2, start=0, stop=S), axis=-1, start=0, stop=S)


def test_gpt2_fills_in_by_a_stored_triangle_and_adds_the_padding() -> None:
    padding = input("padding", f32[B, 1, 1, S])
    scores = (QS @ swap(KS)) / math.sqrt(D)
    spelled = plain_softmax(ops.where(stored_triangle(), scores, LOWEST) + padding) @ VS
    graph = recognised(spelled).graph
    value = found(spelled, "attention")
    assert attention.of(value).mask is padding
    hidden = np.zeros((B, 1, 1, S))
    hidden[1, 0, 0, 4] = LOWEST
    arrays = feeds(graph, padding=hidden)
    expected = qkv(arrays, scale=SCALE, added=hidden, keep=causal(S, S))
    near(run(graph, arrays)["y"], expected)


@pytest.mark.parametrize("padded", (False, True))
def test_gptj_fills_in_before_it_scales(padded: bool) -> None:
    padding = input("padding", f32[B, 1, 1, S])
    filled = ops.where(stored_triangle(), QS @ swap(KS), LOWEST) / math.sqrt(D)
    spelled = plain_softmax(filled + padding if padded else filled) @ VS
    value = found(spelled, "attention")
    assert attention.of(value).scale == pytest.approx(SCALE, rel=2e-7)
    graph = recognised(spelled).graph
    arrays = feeds(graph)
    added = arrays["padding"] if padded else 0.0
    expected = qkv(arrays, scale=SCALE, added=added, keep=causal(S, S))
    near(run(graph, arrays)["y"], expected)


def ranges(size: int = S) -> tuple[Value, Value]:
    """Positions of keys and queries on four axes, as exporters write them."""
    return ops.unsqueeze(ops.iota(size=size), axes=(-4, -3, -2)), ops.unsqueeze(ops.iota(size=size), axes=(-4, -3, -1))


def added_mask(seen: Value, fill: float = LOWEST) -> Value:
    return ops.where(seen, leaf.scalar(0.0, f32), leaf.scalar(fill, f32))


def widen(x: Value, groups: int) -> Value:
    return ops.merge(ops.expand(ops.unsqueeze(x, axes=(-3,)), axis=-3, size=groups), axis=-3)


@pytest.mark.parametrize("padded", (False, True))
@pytest.mark.parametrize("guarded", (False, True))
def test_llama_with_positions_padding_and_grouped_heads(padded: bool, guarded: bool) -> None:
    k, v = input("k", f32[B, 2, S, D]), input("v", f32[B, 2, S, D])
    keys, queries = ranges()
    seen = ops.less_equal(keys, queries)
    keep = input("keep", bool_[B, 1, 1, S])
    if padded:
        seen = ops.bit_and(seen, keep)
    root = math.sqrt(SCALE)
    weights = plain_softmax((QS * root) @ (swap(widen(k, 2)) * root) + added_mask(seen))
    if guarded:
        weights = ops.where(ops.is_nan(weights), 0.0, weights)
    value = check(
        weights @ widen(v, 2),
        lambda a: qkv(a, scale=SCALE, keep=causal(S, S) & a.get("keep", np.True_)),
        groups=2,
        causal=True,
        window=None,
        fill=LOWEST,
        mask=None,
        empty="zero" if guarded else "nan",
    )
    assert (attention.of(value).keep is None) != padded
    assert attention.of(value).k is k


@pytest.mark.parametrize("rank", (2, 4))
def test_mistral_looks_back_a_window(rank: int) -> None:
    keys, queries = ranges() if rank == 4 else (ops.iota(size=S), ops.unsqueeze(ops.iota(size=S), axes=(-1,)))
    seen = ops.bit_and(ops.greater(keys, queries - 2), ops.less_equal(keys, queries))
    check(
        plain_softmax((QS @ swap(KS)) * SCALE + added_mask(seen)) @ VS,
        lambda a: qkv(a, scale=SCALE, keep=causal(S, S, window=2)),
        causal=True,
        window=2,
        fill=LOWEST,
    )


def test_positions_that_are_compared_otherwise_are_a_mask_of_their_own() -> None:
    keys, queries = ranges()
    strict = ops.less(keys, queries + 1)
    for seen, expected in ((strict, causal(S, S)), (ops.less_equal(queries, keys), causal(S, S).T)):
        scores = (QS @ swap(KS)) * SCALE + added_mask(seen)
        spelled = softmax(scores) @ VS
        assert attention.of(found(spelled, "attention")).causal is False
        graph = recognised(spelled).graph
        arrays = feeds(graph)
        near(run(graph, arrays)["y"], qkv(arrays, scale=SCALE, keep=expected))


def test_positions_of_other_lengths_are_no_causal_mask() -> None:
    """One position for all keys says that every query sees all of them."""
    everything = ops.less_equal(
        ops.unsqueeze(ops.iota(size=1), axes=(-2,)), ops.unsqueeze(ops.iota(size=S), axes=(-1,))
    )
    spelled = softmax((QS @ swap(KS)) * SCALE + added_mask(everything)) @ VS
    assert attention.of(found(spelled, "attention")).causal is False
    graph = recognised(spelled).graph
    arrays = feeds(graph)
    near(run(graph, arrays)["y"], qkv(arrays, scale=SCALE))


def test_layers_that_share_a_mask_all_see_that_it_is_causal() -> None:
    keys, queries = ranges()
    mask = added_mask(ops.less_equal(keys, queries))
    x = QS
    for _ in range(3):
        x = softmax((x @ swap(KS)) * SCALE + mask) @ VS
    graph = recognised(x).graph
    assert [v.op.name for v in graph.values if v.op is not leaf.INPUT] == ["attention"] * 3
    assert all(attention.of(v).causal for v in graph.values if v.op is attention)


@pytest.mark.parametrize(("fill", "empty"), [(-INF, 0.0), (LOWEST, None)])
def test_rows_without_any_key(fill: float, empty: float | None) -> None:
    """With -inf the guard makes 0 of them; with the lowest number it never fires, and they get the mean value."""
    keep = input("keep", bool_[B, 1, SQ, SK])
    weights = plain_softmax((Q @ swap(K)) * SCALE + added_mask(keep, fill))
    spelled = ops.where(ops.is_nan(weights), 0.0, weights) @ V
    graph = recognised(spelled).graph
    assert attention.of(found(spelled, "attention")).empty == "zero"
    seen = np.ones((B, 1, SQ, SK), np.bool_)
    seen[0, 0, 1] = False
    arrays = feeds(graph, keep=seen)
    got = run(graph, arrays)["y"]
    expected = qkv(arrays, scale=SCALE, keep=seen, empty=0.0)
    if empty is None:
        expected[0, :, 1] = arrays["v"][0].mean(axis=1)
    near(got, expected)


def test_gemma_bends_its_scores() -> None:
    keys, queries = ranges()
    scores = ops.tanh((QS @ swap(KS)) * SCALE / 30.0) * 30.0
    check(
        plain_softmax(scores + added_mask(ops.less_equal(keys, queries))) @ VS,
        lambda a: qkv(a, scale=SCALE, keep=causal(S, S), softcap=30.0),
        softcap=30.0,
        causal=True,
    )


def test_two_different_caps_are_none() -> None:
    scores = ops.tanh((QS @ swap(KS)) * SCALE / 30.0) * 20.0
    assert all(v.op is not attention for v in recognised(softmax(scores) @ VS).graph.values)


def test_one_head_of_keys_for_all() -> None:
    k, v = input("k", f32[B, 1, SK, D]), input("v", f32[B, 1, SK, D])
    check(softmax((Q @ swap(k)) * SCALE) @ v, lambda a: qkv(a, scale=SCALE))


@pytest.mark.parametrize("lead", ((), (2,), (2, 2)))
def test_any_leading_axes(lead: tuple[int, ...]) -> None:
    q, k, v = (input(n, f32[(*lead, H, s, D)]) for n, s in (("q", SQ), ("k", SK), ("v", SK)))
    spelled = softmax((q @ swap(k)) * SCALE) @ v
    assert found(spelled, "attention") is attention(q, k, v, scale=float(np.float32(SCALE)))


def test_symbolic_sizes() -> None:
    q, k, v = (input(n, f32["b", 4, "s", 8]) for n in "qkv")
    keys, queries = (ops.unsqueeze(ops.iota(size=q.shape[-2]), axes=(-4, -3, a)) for a in (-2, -1))
    spelled = softmax((q @ swap(k)) * 0.25 + added_mask(ops.less_equal(keys, queries))) @ v
    assert found(spelled, "attention") is attention(q, k, v, scale=0.25, causal=True, fill=LOWEST)


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


def refusal(spelled: Value) -> tuple[str, str]:
    (missed,) = [m for m in recognised(spelled).missed if m.rule == "attention"]
    assert missed.hint
    return missed.reason, missed.message


def test_a_batch_that_only_the_queries_have() -> None:
    k = input("k", f32[1, H, SK, D])
    reason, message = refusal(softmax((Q @ swap(k)) * SCALE) @ V)
    assert reason == "leading_axes_agree"
    assert "f32[1, 4, 5, 6]" in message


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


@pytest.mark.parametrize("shape", [(B, 1, 1, SK), (B, 1, SQ, SK), (B, H, SQ, SK), (1, 1, SQ, SK), (SQ, SK), (H, 1, SK)])
def test_masks_stretch_by_their_last_axes(shape: tuple[int, ...]) -> None:
    mask, keep = input("mask", f32[shape]), input("keep", bool_[shape])
    scores = (Q @ swap(K)) * SCALE
    check(softmax(scores + mask) @ V, lambda a: qkv(a, scale=SCALE, added=a["mask"]), mask=mask)
    kept = softmax(ops.where(keep, scores, -INF)) @ V
    check(kept, lambda a: qkv(a, scale=SCALE, keep=a["keep"]), keep=keep)


def test_a_mask_of_batch_and_keys_is_never_read_as_one() -> None:
    """[b, sk] that nobody unsqueezed is [sq, sk] where the sizes allow, and nothing elsewhere."""
    with pytest.raises(TypeRuleError):
        _ = (Q @ swap(K)) * SCALE + input("mask", f32[B, SK])
    q, k, v = (input(n, f32[B, H, B, D]) for n in "qkv")
    mask = input("mask", f32[B, B])
    spelled = softmax((q @ swap(k)) * SCALE + mask) @ v
    graph = recognised(spelled).graph
    arrays = feeds(graph)
    by_rows = qkv(arrays, scale=SCALE, added=arrays["mask"][None, None])
    near(run(graph, arrays)["y"], by_rows)


@pytest.mark.parametrize(("fill", "hides"), [(-INF, True), (LOWEST, True), (-1e9, True), (-1e4, False), (0.0, False)])
def test_a_fill_hides_if_nothing_falls_below_it(fill: float, hides: bool) -> None:
    keep = input("keep", bool_[B, 1, SQ, SK])
    spelled = softmax(ops.where(keep, (Q @ swap(K)) * SCALE, fill)) @ V
    if hides:
        check(spelled, lambda a: qkv(a, scale=SCALE, keep=a["keep"], fill=fill), fill=np.float32(fill))
    else:
        reason, message = refusal(spelled)
        assert reason == "fill_hides"
        assert str(fill) in message


# What goes together.


def test_options_that_do_not_go_together() -> None:
    for options, words in (
        ({"softcap": 30.0}, "softcap"),
        ({"window": 2}, "window"),
        ({"causal": True}, "fill"),
        ({"fill": -INF}, "fill"),
    ):
        with pytest.raises(TypeRuleError, match=words):
            attention(QS, KS, VS, **options)  # type: ignore[arg-type]


def test_variants_stay_few_and_other_matmuls_are_refused_at_a_glance() -> None:
    assert len(attention.variants) <= 256
    x, w = input("x", f32[2, 3, 4]), input("w", f32[4, 5])
    for product in (x @ w, ops.relu(x) @ w, (x * 2.0) @ w):
        assert not [v for v in attention.variants if fits(v.outline, product)]

"""attention with the masks that exporters write, judged query by query in plain NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import bool_, f32, i64
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import input
from dovetail.library.attention import attention
from dovetail.library.softmax import softmax
from tests.library.attending import (
    INF,
    LOWEST,
    added_mask,
    causal,
    check,
    feeds,
    found,
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
    assert attention.of(value).filled == "first"
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
        filled="added",
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


def test_the_first_gpt_multiplies_by_its_triangle() -> None:
    """Scores times 0 or 1, and -1e4 where it is 0, cut from a table that is longer than the sequence."""
    length = symbol("s")
    q, k, v = (input(name, f32[B, H, "s", D]) for name in "qkv")
    table = leaf.constant(np.tri(8, dtype=np.float32))
    kept = ops.slice_(ops.slice_(table, axis=-2, start=0, stop=length), axis=-1, start=0, stop=length)
    spelled = plain_softmax((q @ swap(k)) * SCALE * kept + (1.0 - kept) * -1e4) @ v
    graph = recognised(spelled).graph
    assert attention.of(found(spelled, "attention")).keep is not None
    arrays = {name: np.random.default_rng(i).normal(size=(B, H, S, D)).astype("f4") for i, name in enumerate("qkv")}
    near(run(graph, arrays)["y"], qkv(arrays, scale=SCALE, keep=np.tri(S, dtype=bool)[None, None]))


@pytest.mark.parametrize(("fill", "hides"), [(-INF, True), (LOWEST, True), (-1e4, True), (-1e3, False), (0.0, False)])
def test_a_fill_hides_if_nothing_falls_below_it(fill: float, hides: bool) -> None:
    keep = input("keep", bool_[B, 1, SQ, SK])
    spelled = softmax(ops.where(keep, (Q @ swap(K)) * SCALE, fill)) @ V
    if hides:
        check(spelled, lambda a: qkv(a, scale=SCALE, keep=a["keep"], fill=fill), fill=np.float32(fill))
    else:
        reason, message = refusal(spelled)
        assert reason == "fill_hides"
        assert str(fill) in message

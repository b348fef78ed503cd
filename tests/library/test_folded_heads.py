"""Attention on three axes is attention with heads, and nothing gets lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Graph
from dovetail.dtypes import bool_, f32
from dovetail.errors import TypeRuleError
from dovetail.ir.leaf import input
from dovetail.library.attention import attention
from dovetail.library.folded_heads import folded_attention
from tests.library.attending import INF, Array, attend, causal, feeds, near, run

B, H, S, D = 2, 4, 3, 6


def apart(x: Array, heads: int) -> Array:
    """[b * heads, s, d] as [b, heads, s, d], by counting."""
    return np.array([[x[b * heads + h] for h in range(heads)] for b in range(x.shape[0] // heads)])


@pytest.mark.parametrize("kv_heads", (None, 4, 2, 1))
def test_heads_that_are_folded_into_the_batch(kv_heads: int | None) -> None:
    shared = kv_heads or H
    q = input("q", f32[B * H, S, D])
    k, v = input("k", f32[B * shared, S, D]), input("v", f32[B * shared, S, D])
    mask, keep = input("mask", f32[B * H, S, S]), input("keep", bool_[B, 1, 1, S])
    options: dict[str, Any] = {"scale": 0.5, "softcap": 3.0, "causal": True, "fill": -INF}
    found = folded_attention(q, k, v, mask, keep, heads=H, kv_heads=kv_heads, **options)
    assert found.shape == (B * H, S, D)
    graph = Graph.of(found)
    arrays = feeds(graph)
    want = attend(
        apart(arrays["q"], H),
        apart(arrays["k"], shared),
        apart(arrays["v"], shared),
        scale=0.5,
        softcap=3.0,
        added=apart(arrays["mask"], H),
        keep=causal(S, S) & arrays["keep"],
    )
    near(run(graph, arrays)["y"], want.reshape(B * H, S, D))


def test_options_arrive_as_they_are() -> None:
    q, k, v = (input(n, f32[B * H, S, D]) for n in "qkv")
    found = folded_attention(q, k, v, heads=H, scale=0.3, softcap=2.0, causal=True, window=2, fill=-1e9, empty="zero")
    call = attention.of(next(o for o in Graph.of(found).values if o.op is attention))
    assert (call.scale, call.softcap, call.window, call.fill, call.empty) == (0.3, 2.0, 2, -1e9, "zero")


def test_no_heads_at_all() -> None:
    q, k, v = (input(n, f32[B, S, D]) for n in "qkv")
    mask = input("mask", f32[B, S, S])
    graph = Graph.of(folded_attention(q, k, v, mask, scale=0.5))
    arrays = feeds(graph)
    want = attend(*(arrays[n][:, None] for n in "qkv"), scale=0.5, added=arrays["mask"][:, None])
    near(run(graph, arrays)["y"], want[:, 0])


def test_a_mask_of_batches_is_not_one_of_folded_heads() -> None:
    q, k, v = (input(n, f32[B * H, S, D]) for n in "qkv")
    with pytest.raises(TypeRuleError, match=r"f32\[2, 3, 3\]"):
        folded_attention(q, k, v, input("mask", f32[B, S, S]), heads=H)
    with pytest.raises(TypeRuleError, match=r"f32\[3, 3\]"):
        folded_attention(q, k, v, input("mask", f32[S, S]), heads=H)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "words"), [(4, 3, "share"), (3, None, "common batch"), (4, 2, "common batch")]
)
def test_heads_that_do_not_divide(heads: int, kv_heads: int | None, words: str) -> None:
    q, k, v = (input(n, f32[B * H, S, D]) for n in "qkv")
    with pytest.raises(TypeRuleError, match=words):
        folded_attention(q, k, v, heads=heads, kv_heads=kv_heads)


def test_four_axes_are_refused() -> None:
    q, k, v = (input(n, f32[B, H, S, D]) for n in "qkv")
    with pytest.raises(TypeRuleError, match="folded heads"):
        folded_attention(q, k, v)

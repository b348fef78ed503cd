"""Attention over keys and values whose rows meet in few places of a cache, and masks that are one number a key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.library.heads import split_heads
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.attention import pack_kv as attend_near
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph
from tests.kernels.attending import check, compiled, heads, normal

WIDE = 1024
"""Numbers of a row: 4096 bytes."""
LOWEST = float(np.finfo(np.float32).min)


def within(x: Value, first: int, count: int, d: int) -> Value:
    """Some heads out of the rows of a wide matrix."""
    return split_heads(ops.slice_(x, axis=-1, start=first, stop=first + count * d, step=1), count)


def crowded_heads(d: int, groups: int = 1) -> tuple[Value, Value, Value]:
    b, s = symbol("b"), symbol("s")
    x = input("x", f32[b, s, WIDE])
    kept = 4 // groups
    return within(x, 0, 4, d), within(x, 4 * d, kept, d), within(x, 8 * d, kept, d)


@pytest.mark.parametrize(
    ("stride", "is_so"),
    [
        (4 * 32, False),
        (4608, False),
        (1536, False),
        (9216, True),
        (12288, True),
        (8192, True),
        (symbol("s") * 4, False),
    ],
)
def test_which_rows_push_each_other_out(stride: Any, is_so: bool) -> None:
    assert attend_near.crowded(stride, 32) is is_so


@pytest.mark.slow
@pytest.mark.parametrize(("d", "groups", "causal"), [(16, 1, False), (20, 2, False), (32, 4, True), (7, 1, True)])
@pytest.mark.parametrize("room", [1 << 20, 80 * 4 * 32])
def test_rows_that_lie_far_apart(monkeypatch: Any, d: int, groups: int, causal: bool, room: int) -> None:
    """Also where there is room for some of the keys only."""
    monkeypatch.setattr(attend_near, "ATTENTION", replace(ATTENTION, packed_bytes=room))
    q, k, v = crowded_heads(d, groups)
    fill = -np.inf if causal else None
    value = library.attention(q, k, v, scale=d**-0.5, groups=groups, causal=causal, fill=fill)
    graph = Graph.of(value)
    runner = compiled(graph)
    for b, s in [(1, 1), (2, 31), (1, 33), (2, 70), (1, 200)]:
        check(graph, {"x": normal(b, s, WIDE)}, runner)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_rows_on_more_pages_than_the_tlb_has(monkeypatch: Any, causal: bool) -> None:
    """A run tells whether rows that meet in no place of a cache are packed: above 9 queries over 24 KiB here."""
    monkeypatch.setattr(attend_near, "ATTENTION", replace(ATTENTION, far_bytes=24 << 10, far_queries=9))
    wide = 96
    x, y = input("x", f32[symbol("s"), wide]), input("y", f32[symbol("n"), 2 * wide])
    q, k, v = within(x, 0, 3, 16), within(y, 0, 3, 16), within(y, 64, 3, 16)
    graph = Graph.of(library.attention(q, k, v, scale=0.25, causal=causal, fill=-np.inf if causal else None))
    runner = compiled(graph)
    for s, n in [(8, 200), (9, 31), (9, 32), (50, 20), (50, 100)]:
        check(graph, {"x": normal(s, wide), "y": normal(n, 2 * wide, seed=1)}, runner)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_rotated_keys_with_values_that_lie_far_apart(causal: bool) -> None:
    q, k, v = crowded_heads(16, 2)
    angles = (input(n, f32[symbol("s"), 16]) for n in ("cos", "sin"))
    fill = -np.inf if causal else None
    graph = Graph.of(library.rope_attention(q, k, v, *angles, scale=0.25, groups=2, causal=causal, fill=fill))
    runner = compiled(graph)
    for b, s in [(1, 5), (2, 40), (1, 150)]:
        check(graph, {"x": normal(b, s, WIDE), "cos": normal(s, 16), "sin": normal(s, 16, seed=1)}, runner)


@pytest.mark.slow
def test_bits_do_not_depend_on_who_laid_them_out() -> None:
    graph = Graph.of(library.attention(*crowded_heads(64)))
    plan = make_plan(graph, target=CPU)
    feeds = {"x": normal(3, 200, WIDE)}
    found = [next(iter(NativeGraph(plan, threads=n).bind({}).run(feeds).values())) for n in (1, 2, 5)]
    assert all((x.view(np.int32) == found[0].view(np.int32)).all() for x in found)


def masks(n: int) -> list[Array]:
    """None, some, all but one and all keys hidden, by -inf, by the lowest number, and by less."""
    drawn = normal(n, seed=3)
    return [
        np.zeros(n, np.float32),
        drawn,
        np.where(drawn > 0.3, -np.inf, drawn).astype(np.float32),
        np.where(np.arange(n) > 0, -np.inf, 0).astype(np.float32),
        np.full(n, LOWEST, np.float32),
        np.full(n, -100, np.float32),
        np.where(np.arange(n) == n - 1, 0, LOWEST).astype(np.float32),
    ]


@pytest.mark.slow
def test_masks_of_one_number_a_key() -> None:
    sq, sk = symbol("sq"), symbol("sk")
    q, k, v = heads("q", 7, 2, sq, 8), heads("k", 7, 2, sk, 8), heads("v", 7, 2, sk, 8)
    graph = Graph.of(library.attention(q, k, v, input("mask", f32[7, 1, 1, sk]), scale=0.4))
    runner = compiled(graph)
    for m, n in [(9, 1), (33, 7), (40, 65), (17, 128), (50, 130)]:
        feeds = {"q": normal(7, 2, m, 8), "k": normal(7, 2, n, 8), "v": normal(7, 2, n, 8, seed=1)}
        check(graph, {**feeds, "mask": np.stack(masks(n))[:, None, None]}, runner)


@pytest.mark.slow
def test_far_lower_scores_weigh_nothing() -> None:
    """No weight is a number below the smallest normal one: those are slow to multiply."""
    scores = -np.concatenate([np.linspace(0, 130, 400), [1e4, np.inf]]).astype(np.float32)
    zero, one = np.zeros((1, 20, 1), np.float32), np.ones((1, 402, 1), np.float32)
    graph = Graph.of(
        library.attention(
            heads("q", 1, 20, 1), heads("k", 1, 402, 1), heads("v", 1, 402, 402), input("mask", f32[1, 1, 402])
        )
    )
    feeds = {"q": zero, "k": one, "v": np.eye(402, dtype=np.float32)[None], "mask": scores[None, None]}
    got = check(graph, feeds)[0, 0]
    assert (got[scores < -88] == 0).all()
    assert (got[scores > -80] > 0).all()
    expected = np.exp(scores.astype(np.float64))
    np.testing.assert_allclose(got[scores > -80], (expected / expected.sum())[scores > -80], rtol=1e-5)

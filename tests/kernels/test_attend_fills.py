"""The attend kernel where hidden keys count: fills before the mask, fills that are added, queries that see nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.dtypes import DType, bool_, f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f16
from dovetail.ir.leaf import input
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.attending import check, compiled, heads, normal
from tests.tolerances import assert_close

LOWEST = float(np.finfo(np.float32).min)
LENGTHS = [(1, 1), (3, 40), (40, 40), (130, 20), (20, 130), (90, 90)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fill", "causal", "kept", "window"),
    [(-np.inf, True, True, None), (LOWEST, True, False, None), (LOWEST, False, True, None), (-1e9, True, True, 5)],
)
def test_filled_before_the_mask(fill: float, causal: bool, kept: bool, window: int | None) -> None:
    """All that the first queries may see is padded: keys that are hidden and not padded count as much or more."""
    sq, sk = symbol("sq"), symbol("sk")
    q, k, v = heads("q", 2, 2, sq, 8), heads("k", 2, 2, sk, 8), heads("v", 2, 2, sk, 8)
    mask, keep = input("mask", f32[2, 1, 1, sk]), input("keep", bool_[2, 1, sq, sk]) if kept else None
    options: Any = {"causal": causal, "window": window if causal else None}
    graph = Graph.of(library.attention(q, k, v, mask, keep, scale=0.3, fill=fill, filled="first", **options))
    runner = compiled(graph)
    for m, n in LENGTHS:
        for low in (LOWEST, -np.inf):
            feeds = {"q": normal(2, 2, m, 8), "k": normal(2, 2, n, 8), "v": normal(2, 2, n, 8)}
            # Few numbers have any bits left beside a low fill.
            feeds["mask"] = np.where(np.arange(n) < np.array([0, n // 2])[:, None, None, None], low, 0).astype(
                np.float32
            )
            if kept:
                feeds["keep"] = normal(2, 1, m, n) > 0
                feeds["keep"][:, :, 0] = False
            check(graph, feeds, runner)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "fill", "window"),
    [(f16, -65504.0, 5), (f32, -1e9, None), (f32, LOWEST, 5), (f32, -np.inf, None)],
)
def test_a_fill_that_is_added(dtype: DType, fill: float, window: int | None) -> None:
    sq, sk = symbol("sq"), symbol("sk")
    q, k, v = (input(name, dtype[2, 2, size, 8]) for name, size in (("q", sq), ("k", sk), ("v", sk)))
    keep = input("keep", bool_[2, 1, 1, sk])
    call = library.attention(q, k, v, None, keep, causal=True, window=window, fill=fill, filled="added")
    graph = Graph.of(call)
    runner = compiled(graph)
    # Scores that are whole, and for -1e9 the multiples of 64 that f32 has there.
    step = 64.0 if fill == -1e9 else 1.0
    for m, n in LENGTHS:
        whole = {"q": np.round(normal(2, 2, m, 8)) * step, "k": np.round(normal(2, 2, n, 8)), "v": normal(2, 2, n, 8)}
        feeds = {name: array.astype(dtype.numpy) for name, array in whole.items()}
        feeds["keep"] = np.arange(n) >= np.array([0, n // 2])[:, None, None, None]
        (got,) = runner.run(feeds).values()
        with np.errstate(all="ignore"):
            (expected,) = evaluate(graph, feeds, lift=True).values()
        assert_close(got, expected, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("fill", "filled"), [(LOWEST, "first"), (-1e9, "added")])
def test_rotated(fill: float, filled: Any) -> None:
    q, k, v = heads("q", 2, 4, 60, 8), heads("k", 2, 2, 60, 8), heads("v", 2, 2, 60, 8)
    cos, sin = (input(name, f32[60, 8]) for name in ("cos", "sin"))
    low = np.where(np.arange(60) < 30, LOWEST, 0).astype(np.float32)
    first = filled == "first"
    mask, keep = (input("mask", f32[60]), None) if first else (None, input("keep", bool_[60]))
    graph = Graph.of(
        library.rope_attention(q, k, v, cos, sin, mask, keep, groups=2, causal=True, fill=fill, filled=filled)
    )
    feeds = {"q": np.round(normal(2, 4, 60, 8)) * 64, "k": np.round(normal(2, 2, 60, 8)), "v": normal(2, 2, 60, 8)}
    # Turned by right angles, so that scores stay whole.
    feeds |= {"cos": np.ones((60, 8), np.float32), "sin": np.zeros((60, 8), np.float32)}
    feeds["cos"][::2], feeds["sin"][::2] = 0, 1
    feeds |= {"mask": low} if first else {"keep": low == 0}
    check(graph, feeds)

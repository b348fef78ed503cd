"""Attentions of a few queries, and what they are in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dovetail import library
from dovetail.ir.dtype import DType, f16
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from tests.targets.cuda.graphs import x_of


def attention(
    queries: int | str, keys: int | str, d: int = 64, dv: int = 64, *, dtype: DType = f16, heads: int = 1, **call: Any
) -> Value:
    """An attention of inputs q, k and v."""
    groups = call.get("groups") or 1
    q = x_of(dtype, heads, queries, d, name="q")
    k, v = (x_of(dtype, heads // groups, keys, n, name=name) for name, n in (("k", d), ("v", dv)))
    return library.attention(q, k, v, scale=0.2, **call)


def by_hand(
    feeds: dict[str, Array], *, fill: float = 0.0, causal: bool = False, window: int = 10**6, softcap: float = 0.0
) -> Array:
    """The attention in float64, written another way; zeros where no key is seen."""
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(x, len(q) // len(x), 0) for x in (k, v))
    scores: Array = q @ k.swapaxes(-1, -2) * 0.2
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    seen = feeds["keep"] if "keep" in feeds else np.ones(scores.shape[-2:], bool)
    if causal:
        queries, keys = int(scores.shape[-2]), int(scores.shape[-1])
        row, column = np.arange(queries)[:, None], np.arange(keys)
        seen = seen & (column <= row) & (column > row - window)
    scores = np.where(seen, scores, fill) + feeds.get("mask", np.zeros(1)).astype(np.float64)
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True, initial=-1e30), -1e30))
    total = weights.sum(-1, keepdims=True)
    return weights @ v / np.where(total > 0, total, 1)


HIDDEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "keep": {"keep": True, "fill": -math.inf, "zero_unseen": True},
    "keep_finite": {"keep": True, "fill": -30.0},
    "causal": {"causal": True, "fill": -math.inf},
    "causal_finite": {"causal": True, "fill": -30.0},
    "window": {"causal": True, "window": 40, "fill": -math.inf},
    "softcap": {"softcap": 3.0},
    "mask": {"mask": True},
}
"""What hides keys, as arguments of an attention; True stands for a mask."""

__all__ = ["HIDDEN", "attention", "by_hand"]

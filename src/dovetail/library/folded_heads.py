"""Attention on three axes, with the heads folded into the batch or with none, as attention with heads."""

from __future__ import annotations

from typing import Any

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size, divide
from dovetail.ir.value import Value
from dovetail.library.attention import attention


def folded_attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    keep: Value | None = None,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    **options: Any,
) -> Value:
    """Attention of q[batch * heads, queries, d] and k, v[batch * kv_heads, keys, d], in the shape of q.

    Masks of three axes are folded like q; those of four have the batch and the heads apart. Every option of
    attention is handed on as it is.
    """
    shared = heads if kv_heads is None else kv_heads
    _check(q, k, v, heads, shared)
    groups = None if shared == heads else heads // shared
    found = attention(
        unfolded(q, heads),
        unfolded(k, shared),
        unfolded(v, shared),
        _unfolded_mask(mask, q, heads),
        _unfolded_mask(keep, q, heads),
        groups=groups,
        **options,
    )
    return ops.merge(found, axis=-3)


def unfolded(x: Value, heads: int) -> Value:
    """[batch * heads, rows, d] as [batch, heads, rows, d]."""
    return ops.unsqueeze(x, axes=(-3,)) if heads == 1 else ops.split(x, axis=-3, size=heads)


def _unfolded_mask(mask: Value | None, q: Value, heads: int) -> Value | None:
    if mask is None or mask.rank == 4:
        return mask
    if mask.rank != 3 or mask.shape[0] not in (1, q.shape[0]):
        raise TypeRuleError(
            f"a mask of {mask.type} for folded heads of {q.type}",
            hint="fold it like the queries, or give it the axes [batch, heads, queries, keys]",
        )
    return unfolded(mask, 1 if mask.shape[0] == 1 else heads)


def _check(q: Value, k: Value, v: Value, heads: int, shared: int) -> None:
    if {q.rank, k.rank, v.rank} != {3}:
        raise TypeRuleError(
            f"folded heads of {q.type}, {k.type} and {v.type}", hint="give all three of them three axes"
        )
    if shared < 1 or heads % shared:
        raise TypeRuleError(f"{heads} heads that share {shared}", hint="the heads of keys divide those of queries")
    batches: list[Size | None] = [divide(x.shape[0], n) for x, n in ((q, heads), (k, shared), (v, shared))]
    if None in batches or len(set(batches)) > 1:
        raise TypeRuleError(
            f"{q.type}, {k.type} and {v.type} with {heads} and {shared} heads have no common batch",
            hint="the first axis is the batch times the heads",
        )

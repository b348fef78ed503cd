"""Self-attention with its projections."""

from __future__ import annotations

from dovetail.declare.block import block
from dovetail.ir.value import Value
from dovetail.library.attention import attention
from dovetail.library.heads import merge_heads, split_heads
from dovetail.library.linear import linear


@block(
    shapes="x[b, s, h*d] wq[h*d, h*d] wk[h*d, h*d] wv[h*d, h*d] wo[h*d, h*d] "
    "bq[h*d] bk[h*d] bv[h*d] bo[h*d] mask[b, 1, 1, s] heads=h"
)
def self_attention(
    x: Value,
    wq: Value,
    wk: Value,
    wv: Value,
    wo: Value,
    bq: Value | None = None,
    bk: Value | None = None,
    bv: Value | None = None,
    bo: Value | None = None,
    mask: Value | None = None,
    *,
    heads: int,
    scale: float,
) -> Value:
    """Queries, keys and values of one input, attention, and the projection back."""
    q, k, v = (split_heads(linear.body(x, w, b), heads) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    return linear.body(merge_heads(attention.body(q, k, v, mask, scale=scale)), wo, bo)

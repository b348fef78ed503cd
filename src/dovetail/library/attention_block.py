"""attention_block: attention together with the projections into it and out of it."""

from __future__ import annotations

from typing import Annotated, Any

from dovetail.declare import HANDED_ON, Cost, fused_op
from dovetail.ir.value import Value
from dovetail.library.attention import Filled, attention
from dovetail.library.heads import merge_heads, split_heads
from dovetail.library.panels import in_panels
from dovetail.library.projection import projected, queries_keys_values
from dovetail.library.rope_attention import rope_attention
from dovetail.library.scores import Scaled
from dovetail.library.softmax import Empty, Flag


@fused_op(
    shapes="x[b, s, groups*h*2*d] cos[s, 2*d] sin[s, 2*d] mask[b, 1, 1, s] keep:bool[b, 1, 1, s] fill=-inf "
    "heads=groups*h kv_heads=h wk[groups*h*2*d, h*2*d] wv[groups*h*2*d, h*2*d] bk[h*2*d] bv[h*2*d] bo[n] "
    "w[groups*h*2*d, groups*h*2*d] b[groups*h*2*d] wo[groups*h*2*d, n] "
    "w[groups*h*2*d, 3*groups*h*2*d] b[3*groups*h*2*d] wo[groups*h*2*d, n] "
    "w[groups*h*2*d, 3*groups*h*2*e] b[3*groups*h*2*e] wo[groups*h*2*e, n]",
    stage="block",
    together=("wk wv kv_heads", "bk bv", "cos sin"),
)
def attention_block(
    x: Value,
    w: Value,
    wo: Value,
    wk: Value | None = None,
    wv: Value | None = None,
    b: Value | None = None,
    bk: Value | None = None,
    bv: Value | None = None,
    bo: Value | None = None,
    cos: Value | None = None,
    sin: Value | None = None,
    mask: Value | None = None,
    keep: Value | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
    scale: Annotated[float | None, HANDED_ON] = None,
    scaled: Annotated[Scaled, HANDED_ON] = "product",
    softcap: Annotated[float | None, HANDED_ON] = None,
    groups: Annotated[int | None, HANDED_ON] = None,
    causal: Annotated[Flag, HANDED_ON] = False,
    window: Annotated[int | None, HANDED_ON] = None,
    fill: Annotated[float | None, HANDED_ON] = None,
    filled: Annotated[Filled, HANDED_ON] = "last",
    zero_unseen: Annotated[Flag, HANDED_ON] = False,
    empty: Annotated[Empty, HANDED_ON] = "nan",
    wide: Annotated[Flag, HANDED_ON] = False,
) -> Value:
    """Queries, keys and values of x, rotated or not, their attention, and the projection out: one kernel.

    w holds the columns of queries, keys and values side by side, or those of queries where keys and values have
    weights of their own; these may have fewer heads.
    """
    shared = heads if kv_heads is None else kv_heads
    q, k, v = queries_keys_values(x, (w, wk, wv), (b, bk, bv))
    q, k, v = split_heads(q, heads), split_heads(k, shared), split_heads(v, shared)
    options: dict[str, Any] = {
        "scale": scale,
        "scaled": scaled,
        "softcap": softcap,
        "groups": groups,
        "causal": causal,
        "window": window,
        "fill": fill,
        "filled": filled,
        "zero_unseen": zero_unseen,
        "empty": empty,
        "wide": wide,
    }
    if cos is None or sin is None:
        attended = attention(q, k, v, mask, keep, **options)
    else:
        attended = rope_attention(q, k, v, cos, sin, mask, keep, **options)
    return projected(merge_heads(attended), wo, bo)


@attention_block.requires(
    reason="x is {x.type}; the kernel walks batches of rows",
)
def x_is_a_batch_of_rows(x: Value) -> bool:
    return x.rank == 3


@attention_block.requires(
    reason="the weight into attention is {w.type}, the one out of it is {wo.type}; the kernel takes one matrix of each "
    "for the whole batch",
)
def weights_are_matrices(w: Value, wo: Value, wk: Value | None, wv: Value | None) -> bool:
    return w.rank == 2 and wo.rank == 2 and (wk is None or wk.rank == 2) and (wv is None or wv.rank == 2)


@attention_block.requires(
    reason="x is {x.type} and the joined weight is {w.type}; queries, keys and values are each as wide as x",
)
def projection_is_three_times_as_wide(x: Value, w: Value, wk: Value | None) -> bool:
    return wk is not None or w.shape[-1] == x.shape[-1] * 3


@attention_block.requires(
    reason="the result is {result.type} and x is {x.type}; a mask stretches to [batch, heads, rows, rows], never these "
    "to a mask",
    hint="unsqueeze the mask to [batch, 1, 1, rows] or [batch, 1, rows, rows]",
)
def masks_broadcast(x: Value, result: Value) -> bool:
    return result.shape[:-1] == x.shape[:-1]


@attention_block.cost
def one_panel_at_a_time(**call: Any) -> Cost:
    """Few rows gain from staying in one kernel; many are better served one step at a time."""
    return in_panels(attention_block, call)

"""A pre-norm decoder layer, as Llama and Qwen have it."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.blocks.feed_forward import swiglu_ffn
from dovetail.declare.block import block
from dovetail.ir.value import Value
from dovetail.library.attention import attention
from dovetail.library.heads import merge_heads, split_heads
from dovetail.library.rms_norm import rms_norm
from dovetail.library.rope import rope


@block(
    shapes="x[b, s, kv_heads*groups*d] gain1[kv_heads*groups*d] wq[kv_heads*groups*d, kv_heads*groups*d] "
    "wk[kv_heads*groups*d, kv_heads*d] wv[kv_heads*groups*d, kv_heads*d] wo[kv_heads*groups*d, kv_heads*groups*d] "
    "gain2[kv_heads*groups*d] up[kv_heads*groups*d, n] gate[kv_heads*groups*d, n] down[n, kv_heads*groups*d] "
    "cos[s, d] sin[s, d] mask[b, 1, s, s] q_gain[d] k_gain[d] past_k[b, kv_heads, p, d] past_v[b, kv_heads, p, d]"
)
def llama_layer(
    x: Value,
    gain1: Value,
    wq: Value,
    wk: Value,
    wv: Value,
    wo: Value,
    gain2: Value,
    up: Value,
    gate: Value,
    down: Value,
    cos: Value,
    sin: Value,
    mask: Value | None = None,
    q_gain: Value | None = None,
    k_gain: Value | None = None,
    past_k: Value | None = None,
    past_v: Value | None = None,
    *,
    heads: int,
    kv_heads: int,
    groups: int | None = None,
    scale: float,
    eps: float,
    causal: Literal[False, True] = False,
    keep_cache: Literal[False, True] = False,
) -> Value | tuple[Value, ...]:
    """Attention with rotated queries and keys, then a gated feed-forward, each normalised before and added after.

    `groups` query heads share one head of keys and values. With a cache the keys and values of this call are put
    after those of earlier ones; they are further results where the next call wants them.
    """
    q, k, v = projected(x, gain1, wq, wk, wv, cos, sin, q_gain, k_gain, heads=heads, kv_heads=kv_heads, eps=eps)
    if past_k is not None:
        k = ops.concat(past_k, k, axis=-2)
    if past_v is not None:
        v = ops.concat(past_v, v, axis=-2)
    fill = float("-inf") if causal else None
    attended = attention.body(q, k, v, mask, scale=scale, groups=groups, causal=causal, fill=fill)
    result = finished(x, attended, wo, gain2, up, gate, down, eps=eps)
    return (result, k, v) if keep_cache else result


def projected(
    x: Value,
    gain: Value,
    wq: Value,
    wk: Value,
    wv: Value,
    cos: Value,
    sin: Value,
    q_gain: Value | None,
    k_gain: Value | None,
    *,
    heads: int,
    kv_heads: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Queries, keys and values of a layer's normalised input, by heads; queries and keys are rotated."""
    y = rms_norm(x, gain, eps=eps)
    q, k, v = split_heads(y @ wq, heads), split_heads(y @ wk, kv_heads), split_heads(y @ wv, kv_heads)
    if q_gain is not None:
        q = rms_norm(q, q_gain, eps=eps)
    if k_gain is not None:
        k = rms_norm(k, k_gain, eps=eps)
    return rope.body(q, cos, sin), rope.body(k, cos, sin), v


def finished(
    x: Value, attended: Value, wo: Value, gain: Value, up: Value, gate: Value, down: Value, *, eps: float
) -> Value:
    """The result of a layer: its input with what was attended to, then with a gated feed-forward of that."""
    middle = x + merge_heads(attended) @ wo
    return middle + swiglu_ffn.body(rms_norm(middle, gain, eps=eps), up, gate, down)


__all__ = ["finished", "llama_layer", "projected"]

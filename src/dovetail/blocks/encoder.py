"""A post-norm encoder layer, as BERT has it."""

from __future__ import annotations

from dovetail.blocks.feed_forward import ffn
from dovetail.blocks.self_attention import self_attention
from dovetail.declare.block import block
from dovetail.ir.value import Value
from dovetail.library.activation import Activation
from dovetail.library.layer_norm import layer_norm


@block(
    shapes="x[b, s, h*d] wq[h*d, h*d] bq[h*d] wk[h*d, h*d] bk[h*d] wv[h*d, h*d] bv[h*d] wo[h*d, h*d] bo[h*d] "
    "gain1[h*d] bias1[h*d] up[h*d, n] up_bias[n] down[n, h*d] down_bias[h*d] gain2[h*d] bias2[h*d] mask[b, 1, 1, s]"
)
def bert_layer(
    x: Value,
    wq: Value,
    bq: Value,
    wk: Value,
    bk: Value,
    wv: Value,
    bv: Value,
    wo: Value,
    bo: Value,
    gain1: Value,
    bias1: Value,
    up: Value,
    up_bias: Value,
    down: Value,
    down_bias: Value,
    gain2: Value,
    bias2: Value,
    mask: Value | None = None,
    *,
    heads: int,
    scale: float,
    eps: float,
    act: Activation = "gelu",
) -> Value:
    """Attention and feed-forward, each added to its input and normalised."""
    attended = self_attention.body(x, wq, wk, wv, wo, bq, bk, bv, bo, mask, heads=heads, scale=scale)
    middle = layer_norm(attended + x, gain1, bias1, eps=eps)
    return layer_norm(ffn.body(middle, up, up_bias, down, down_bias, act=act) + middle, gain2, bias2, eps=eps)

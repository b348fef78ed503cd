"""A Llama- or Qwen-style decoder whose KV cache is updated in place: a prompt, a part of one, or one token.

One cache serves all of them: the caches are donated inputs with room for a whole conversation, and a run writes the
keys and values of its tokens at their positions. Sizes are symbols and positions are data, so that nothing is compiled
from token to token.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dovetail import ops
from dovetail.blocks.decoder import finished, projected
from dovetail.ir.dtype import f32, i64, u32
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.origin import scope
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.library.attention import attention
from dovetail.models.llama import LlamaShape, angles, embed, head, layer_weights


def llama_cached(
    shape: LlamaShape | None = None,
    *,
    batch: SizeLike = "b",
    seq: SizeLike = 1,
    room: SizeLike = "room",
    length: SizeLike = "t",
    temperature: float | None = None,
) -> Graph:
    """Tokens at positions in; the next token, its logits and the caches with the tokens' keys and values out.

    `input_ids` are [batch, seq] and `positions` [seq]. `keys` are the positions of the first `length` rows of the
    caches: a token sees the rows whose position is not after its own. Pad `keys` with positions that never come; rows
    of padding hold finite numbers.
    The next token is the likeliest one, or with a `temperature` one drawn with the bits of `key`. With a `seq` of 1 the
    next token, position and key take the memory of `input_ids`, `positions` and `key`: the outputs of one step are the
    inputs of the next.
    """
    of = shape or LlamaShape()
    builder = Builder("llama_cached", lines=False)
    with builder.recording():
        ids, positions = builder.input("input_ids", i64[batch, seq]), builder.input("positions", i64[seq])
        keys = builder.input("keys", i64[length])
        with scope("rope"):
            cos, sin = angles(of, positions)
        keep = ops.less_equal(keys, ops.unsqueeze(positions, axes=(-1,)))
        x = embed(builder, of, ids)
        for index in range(of.layers):
            cache = of.dtype[batch, of.kv_heads, room, of.width]
            old = [builder.input(f"{side}_cache.{index}", cache) for side in "kv"]
            with scope(f"layers.{index}"):
                x, *new = _layer(builder, of, _Step(x, cos, sin, positions, keep), old, f"layers.{index}")
            for side, value in zip("kv", new, strict=True):
                builder.output(f"new_{side}_cache.{index}", value, into=f"{side}_cache.{index}")
        last = ops.slice_(x, axis=-2, start=x.shape[-2] - 1, stop=x.shape[-2])
        logits = head(builder, of, last)
        builder.output("logits", logits)
        is_step = seq == 1
        with scope("choice"):
            chosen = logits
            if temperature is not None:
                key = builder.input("key", u32[2])
                chosen = logits * (1.0 / temperature) + ops.cast(_gumbel(key, logits), dtype=of.dtype)
                builder.output("next_key", key + 1, into="key")
            builder.output("next_ids", likeliest(chosen), into="input_ids" if is_step else "")
            final = ops.slice_(positions, axis=-1, start=positions.shape[-1] - 1, stop=positions.shape[-1])
            builder.output("next_positions", final + 1, into="positions" if is_step else "")
    return builder.graph()


class _Step(NamedTuple):
    """What all layers share, and what one hands to the next."""

    x: Value
    cos: Value
    sin: Value
    positions: Value
    keep: Value


def _layer(builder: Builder, of: LlamaShape, step: _Step, old: list[Value], name: str) -> tuple[Value, Value, Value]:
    """Return a decoder layer, and its caches with the new rows."""
    weights, q_gain, k_gain = layer_weights(builder, of, name)
    gain1, wq, wk, wv, wo, gain2, up, gate, down = weights
    q, k, v = projected(
        step.x, gain1, wq, wk, wv, step.cos, step.sin, q_gain, k_gain, heads=of.heads, kv_heads=of.kv_heads, eps=of.eps
    )
    new_k, new_v = (with_rows(cache, rows, step.positions) for cache, rows in zip(old, (k, v), strict=True))
    seen = step.keep.shape[-1]
    keys, values = (ops.slice_(cache, axis=-2, start=0, stop=seen) for cache in (new_k, new_v))
    groups = of.heads // of.kv_heads
    attended = attention.body(
        q,
        keys,
        values,
        keep=step.keep,
        scale=1.0 / math.sqrt(of.width),
        groups=groups if groups > 1 else None,
        fill=float("-inf"),
    )
    return finished(step.x, attended, wo, gain2, up, gate, down, eps=of.eps), new_k, new_v


def with_rows(cache: Value, rows: Value, positions: Value) -> Value:
    """Return a cache with rows at these positions of each head; positions are [tokens], or [batch, tokens]."""
    missing = (-1, -3) if positions.rank == 2 else (-1, -3, -4)
    at = ops.unsqueeze(positions, axes=missing)
    for axis in missing:
        at = ops.expand(at, axis=axis, size=rows.shape[axis])
    return ops.scatter_elements(cache, at, rows, axis=-2)


def likeliest(logits: Value) -> Value:
    """Return the token with the largest logit, the first of equals: [batch, seq] of [batch, seq, vocabulary]."""
    return ops.squeeze(ops.arg_max(logits, axis=-1), axes=(-1,))


def _gumbel(key: Value, like: Value) -> Value:
    """Gumbel noise: the largest of logits with it is a draw from their softmax."""
    bits = ops.cast(ops.random_bits(key, shape=like.shape, dtype=u32), dtype=f32)
    # Between 0 and 1, and neither: the largest numbers would round to 1.
    uniform = ops.minimum((bits + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -ops.log(-ops.log(uniform))


__all__ = ["likeliest", "llama_cached", "with_rows"]

"""Decoders whose weights are stored as a file has them: plain numbers or blocks.

One KV cache serves a prompt, a part of one and single tokens: caches are donated inputs with room for a conversation,
and a run writes the keys and values of its tokens at their positions. Sizes are symbols and positions are data, so that
nothing is compiled from token to token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from dovetail import ops
from dovetail.errors import OptionError
from dovetail.ir.dtype import i64
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.origin import scope
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.library.attention import attention
from dovetail.library.heads import merge_heads
from dovetail.models import kv_cache
from dovetail.models.decoder_parts import Weights, angles, feed_forward, normed, projected, turned
from dovetail.models.decoder_shape import DecoderShape, Rope
from dovetail.models.kv_cache import CacheKind, Rows
from dovetail.models.llama_cache import likeliest

NO_TOKEN = -1
"""What stands for the likeliest token where weights that are no numbers, or an overflow, leave none."""


def cached_decoder(
    of: DecoderShape,
    kinds: Mapping[str, str],
    *,
    batch: SizeLike = 1,
    seq: SizeLike = 1,
    room: SizeLike = "room",
    length: SizeLike = "t",
    every_position: bool = False,
    wanted: SizeLike | None = None,
    cache: CacheKind = "f32",
    by_token: bool = False,
    gives: Literal["logits", "states"] = "logits",
    chooses: bool = False,
    ranks: Mapping[str, int] | None = None,
) -> Graph:
    """Tokens at positions in; logits after the last of them, and the caches with their keys and values, out.

    `kinds` names how each parameter is stored: a dtype or a block format. `input_ids` are [batch, seq], `positions`
    [seq], or [batch, seq] where there are several sequences, and `keys` the positions of the first `length` rows of the
    caches: a token sees the rows whose position is not after its own. With `every_position` there are logits after each
    token, and with `wanted` after those tokens whose indices the input `wanted` holds. `by_token` makes each token of a
    prompt a batch of its own for attention: its sums then have the order of a single token's, and its bits. States
    are those of every token after the last norm, without logits. `ranks` are those of the matrices that an adapter
    updates: w + b @ a, with parameters `….lora_a` and `….lora_b`.

    With `chooses` and one token of each sequence, `next_ids` has the likeliest token after it, the first of equals, or
    NO_TOKEN where its logit is not finite, and `next_positions` its position. They take the memory of `input_ids` and
    `positions`: the outputs of one step are the inputs of the next.
    """
    if batch != 1 and seq != 1:
        raise OptionError(f"{seq} tokens of {batch} sequences", hint="several sequences take one token each")
    if chooses and seq != 1:
        raise OptionError(f"the next token after {seq}", hint="choose it in a step of one token")
    builder = Builder("decoder", lines=False)
    weights = Weights(builder, kinds, ranks)
    with builder.recording():
        ids = builder.input("input_ids", i64[batch, seq])
        positions = builder.input("positions", i64[seq] if batch == 1 else i64[batch, seq])
        keys = builder.input("keys", i64[length])
        # Angles and masks broadcast along heads, which are before the tokens.
        at = positions if batch == 1 else ops.unsqueeze(positions, axes=(-2,))
        step = _Step(at, keys, by_token and seq != 1, {}, {})
        with scope("embedding"):
            x = weights.rows("embedding", of.vocabulary, of.hidden, ids)
            if of.style.scaled_embedding:
                x = x * math.sqrt(of.hidden)
            if of.style.learned_positions:
                x = x + weights.rows("position_table", of.table, of.hidden, positions)
        for index in range(of.layers):
            size = (batch, of.kv_heads, room)
            old = [kv_cache.inputs(builder, f"{side}_cache.{index}", cache, size, of.width) for side in "kv"]
            with scope(f"layers.{index}"):
                x, *new = _layer(weights, of, x, step, old, index)
            for rows in new:
                rows.outputs(builder)
        # A sum of a normalised part has the bits of a single token's only where the next norm is computed with it.
        norms_all = gives == "states" or (by_token and of.style.norms_after)
        with scope("head"):
            if norms_all:
                x = normed(weights, of, x, "norm")
        if wanted is not None:
            x = ops.gather(x, builder.input("wanted", i64[wanted]), axis=-2)
        elif not every_position and gives == "logits":
            x = ops.slice_(x, axis=-2, start=x.shape[-2] - 1, stop=x.shape[-2])
        with scope("head"):
            y = x if norms_all else normed(weights, of, x, "norm")
            if gives == "states":
                builder.output("states", y)
                return builder.graph()
            table = "embedding" if of.is_tied else "head"
            logits = _bent(y @ weights.matrix(table, of.vocabulary, of.hidden), of.final_softcap)
            builder.output("logits", logits)
        if chooses:
            with scope("choice"):
                builder.output("next_ids", _finite(likeliest(logits), logits), into="input_ids")
                builder.output("next_positions", positions + 1, into="positions")
    return builder.graph()


class _Step(NamedTuple):
    """What all layers share: the tokens' positions, and what follows from them, made once for each kind of layer."""

    positions: Value
    keys: Value
    by_token: bool
    turns: dict[Rope, tuple[Value, Value]]
    kept: dict[int, Value]

    def angles(self, of: DecoderShape, layer: int) -> tuple[Value, Value]:
        """Cosine and sine for a layer."""
        how = of.local_rope if of.local_rope is not None and of.is_local(layer) else of.rope
        if how not in self.turns:
            with scope("rope"):
                self.turns[how] = angles(of, how, self.positions)
        return self.turns[how]

    def keep(self, of: DecoderShape, layer: int) -> Value:
        """Return which keys each token of a layer sees."""
        window = of.window if of.has_window(layer) else 0
        if window not in self.kept:
            at = ops.unsqueeze(self.positions, axes=(-1,))
            seen = ops.less_equal(self.keys, at)
            self.kept[window] = seen if not window else ops.bit_and(seen, ops.less(at - self.keys, window))
        return self.kept[window]


def _layer(
    weights: Weights, of: DecoderShape, x: Value, step: _Step, old: list[Rows], index: int
) -> tuple[Value, Rows, Rows]:
    """Return a decoder layer, and its caches with the new rows."""
    name, wide, after = f"layers.{index}", of.heads * of.width, of.style.norms_after
    q, k, v = projected(weights, of, normed(weights, of, x, f"{name}.norm1"), name)
    if not of.style.learned_positions:
        q, k = (turned(of, z, *step.angles(of, index)) for z in (q, k))
    new_k, new_v = (cache.written(rows, step.positions) for cache, rows in zip(old, (k, v), strict=True))
    keep = step.keep(of, index)
    keys, values = (cache.first(keep.shape[-1]) for cache in (new_k, new_v))
    groups = of.heads // of.kv_heads
    if step.by_token:
        q, keep = ops.permute(q, order=(-2, -3, -4, -1)), ops.unsqueeze(keep, axes=(-2, -3))
    attended = attention.body(
        q,
        keys,
        values,
        keep=keep,
        scale=of.scale or 1.0 / math.sqrt(of.width),
        softcap=of.softcap or None,
        groups=groups if groups > 1 else None,
        fill=float("-inf"),
    )
    if step.by_token:
        attended = ops.permute(attended, order=(-2, -3, -4, -1))
    y = weights.linear(merge_heads(attended), f"{name}.wo", of.hidden, wide, biased="wo" in of.style.biased)
    middle = x + (normed(weights, of, y, f"{name}.norm1_after") if after else y)
    z = feed_forward(weights, of, normed(weights, of, middle, f"{name}.norm2"), name)
    return middle + (normed(weights, of, z, f"{name}.norm2_after") if after else z), new_k, new_v


def _finite(tokens: Value, logits: Value) -> Value:
    """Return the tokens whose logits are finite, and NO_TOKEN for others: 8 bytes are all that the host reads."""
    chosen_logits = ops.squeeze(ops.gather_elements(logits, ops.unsqueeze(tokens, axes=(-1,)), axis=-1), axes=(-1,))
    return ops.where(ops.is_finite(chosen_logits), tokens, NO_TOKEN)


def _bent(x: Value, softcap: float) -> Value:
    """x, bent to stay below a bound if there is one."""
    return ops.tanh(x / softcap) * softcap if softcap else x


__all__ = ["NO_TOKEN", "cached_decoder"]

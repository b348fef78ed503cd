"""Decoders of the Llama family whose weights are stored as a file has them: plain numbers or blocks.

One KV cache serves a prompt, a part of one and single tokens: caches are donated inputs with room for a conversation,
and a run writes the keys and values of its tokens at their positions. Sizes are symbols and positions are data, so that
nothing is compiled from token to token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dovetail import ops
from dovetail.blocks.feed_forward import swiglu_ffn
from dovetail.ir import leaf
from dovetail.ir.dtype import BY_NAME, f32, i64, u8
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.origin import scope
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.library.attention import attention
from dovetail.library.block_formats import FORMATS
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.library.heads import merge_heads, split_heads
from dovetail.library.rms_norm import rms_norm
from dovetail.library.rope import Form, rope
from dovetail.models.llama_cache import with_rows


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a decoder, and which of the family's variations it has."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    width: int
    """Of one head."""
    inner: int
    vocabulary: int
    context: int
    """Positions that the model was trained for."""
    eps: float = 1e-5
    theta: float = 10000.0
    slowed: tuple[float, ...] = ()
    """What the rate of each pair of rotated features is divided by; empty where rates are as they come."""
    pairs: Form = "half"
    """Which features are rotated together."""
    has_biases: bool = False
    """Whether queries, keys and values have biases."""
    normed_heads: bool = False
    """Whether queries and keys are normalised head by head."""
    is_tied: bool = False
    """Whether the head is the embedding."""


def cached_decoder(
    of: DecoderShape,
    kinds: Mapping[str, str],
    *,
    batch: SizeLike = 1,
    seq: SizeLike = 1,
    room: SizeLike = "room",
    length: SizeLike = "t",
    every_position: bool = False,
) -> Graph:
    """Tokens at positions in; logits after the last of them, and the caches with their keys and values, out.

    `kinds` names how each parameter is stored: a dtype or a block format. `input_ids` are [batch, seq], `positions`
    [seq] and `keys` the positions of the first `length` rows of the caches: a token sees the rows whose position is not
    after its own. With `every_position` there are logits after each token.
    """
    builder = Builder("decoder", lines=False)
    weights = _Weights(builder, kinds)
    with builder.recording():
        ids, positions = builder.input("input_ids", i64[batch, seq]), builder.input("positions", i64[seq])
        keys = builder.input("keys", i64[length])
        with scope("rope"):
            cos, sin = _angles(of, positions)
        step = _Step(cos, sin, positions, ops.less_equal(keys, ops.unsqueeze(positions, axes=(-1,))))
        with scope("embedding"):
            x = weights.rows("embedding", of.vocabulary, of.hidden, ids)
        for index in range(of.layers):
            cache = f32[batch, of.kv_heads, room, of.width]
            old = [builder.input(f"{side}_cache.{index}", cache) for side in "kv"]
            with scope(f"layers.{index}"):
                x, *new = _layer(weights, of, x, step, old, f"layers.{index}")
            for side, value in zip("kv", new, strict=True):
                builder.output(f"new_{side}_cache.{index}", value, into=f"{side}_cache.{index}")
        if not every_position:
            x = ops.slice_(x, axis=-2, start=x.shape[-2] - 1, stop=x.shape[-2])
        with scope("head"):
            y = rms_norm(x, weights.vector("norm.gain", of.hidden), eps=of.eps)
            table = "embedding" if of.is_tied else "head"
            builder.output("logits", y @ weights.matrix(table, of.vocabulary, of.hidden))
    return builder.graph()


def parameter_shapes(of: DecoderShape) -> dict[str, tuple[int, ...]]:
    """The parameters of a decoder by name; matrices are [out, in]."""
    wide, narrow = of.heads * of.width, of.kv_heads * of.width
    found: dict[str, tuple[int, ...]] = {"embedding": (of.vocabulary, of.hidden), "norm.gain": (of.hidden,)}
    if not of.is_tied:
        found["head"] = (of.vocabulary, of.hidden)
    layer: dict[str, tuple[int, ...]] = {
        "norm1.gain": (of.hidden,),
        "wq": (wide, of.hidden),
        "wk": (narrow, of.hidden),
        "wv": (narrow, of.hidden),
        "wo": (of.hidden, wide),
        "norm2.gain": (of.hidden,),
        "up": (of.inner, of.hidden),
        "gate": (of.inner, of.hidden),
        "down": (of.hidden, of.inner),
    }
    if of.has_biases:
        layer |= {"wq.bias": (wide,), "wk.bias": (narrow,), "wv.bias": (narrow,)}
    if of.normed_heads:
        layer |= {"q_norm.gain": (of.width,), "k_norm.gain": (of.width,)}
    for index in range(of.layers):
        found |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return found


class _Weights:
    """Parameters as they are stored, and as f32 that is computed from them."""

    def __init__(self, builder: Builder, kinds: Mapping[str, str]) -> None:
        self.builder, self.kinds = builder, kinds

    def _stored(self, name: str, rows: int, columns: int) -> Value:
        kind = self.kinds.get(name, f32.name)
        if kind in FORMATS:
            of = FORMATS[kind]
            return self.builder.param(name, u8[rows, columns // of.elements * of.bytes])
        return self.builder.param(name, BY_NAME[kind][rows, columns])

    def _floats(self, name: str, stored: Value) -> Value:
        kind = self.kinds.get(name, f32.name)
        if kind in FORMATS:
            # The format is one of the names that the op lists.
            return dequantise_blocks(stored, format=kind)  # pyright: ignore[reportArgumentType]
        return stored if stored.dtype is f32 else ops.cast(stored, dtype=f32)

    def matrix(self, name: str, rows: int, columns: int) -> Value:
        """A matrix [rows, columns], transposed."""
        return ops.permute(self._floats(name, self._stored(name, rows, columns)), order=(-1, -2))

    def rows(self, name: str, rows: int, columns: int, indices: Value) -> Value:
        """Some rows of a matrix; no others are spelled out."""
        return self._floats(name, ops.gather(self._stored(name, rows, columns), indices, axis=0))

    def vector(self, name: str, size: int) -> Value:
        return self._floats(name, self.builder.param(name, BY_NAME[self.kinds.get(name, f32.name)][size]))


class _Step(NamedTuple):
    """What all layers share."""

    cos: Value
    sin: Value
    positions: Value
    keep: Value


def _angles(of: DecoderShape, positions: Value) -> tuple[Value, Value]:
    """Cosine and sine for each position and feature."""
    rates = of.theta ** -(np.arange(0, of.width, 2) / of.width)
    if of.slowed:
        rates = rates / np.asarray(of.slowed)
    both = np.repeat(rates, 2) if of.pairs == "interleaved" else np.concatenate([rates, rates])
    turns = ops.unsqueeze(ops.cast(positions, dtype=f32), axes=(-1,)) * leaf.constant(both, f32)
    return ops.cos(turns), ops.sin(turns)


def _layer(
    weights: _Weights, of: DecoderShape, x: Value, step: _Step, old: list[Value], name: str
) -> tuple[Value, Value, Value]:
    """A decoder layer, and its caches with the new rows."""
    wide, narrow = of.heads * of.width, of.kv_heads * of.width

    def linear(part: str, y: Value, rows: int) -> Value:
        found = y @ weights.matrix(f"{name}.{part}", rows, of.hidden)
        return found + weights.vector(f"{name}.{part}.bias", rows) if of.has_biases else found

    y = rms_norm(x, weights.vector(f"{name}.norm1.gain", of.hidden), eps=of.eps)
    q = split_heads(linear("wq", y, wide), of.heads)
    k, v = (split_heads(linear(part, y, narrow), of.kv_heads) for part in ("wk", "wv"))
    if of.normed_heads:
        q, k = (
            rms_norm(z, weights.vector(f"{name}.{side}_norm.gain", of.width), eps=of.eps)
            for side, z in (("q", q), ("k", k))
        )
    q, k = (rope(z, step.cos, step.sin, form=of.pairs) for z in (q, k))
    new_k, new_v = (with_rows(cache, rows, step.positions) for cache, rows in zip(old, (k, v), strict=True))
    keys, values = (ops.slice_(c, axis=-2, start=0, stop=step.keep.shape[-1]) for c in (new_k, new_v))
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
    middle = x + merge_heads(attended) @ weights.matrix(f"{name}.wo", of.hidden, wide)
    z = rms_norm(middle, weights.vector(f"{name}.norm2.gain", of.hidden), eps=of.eps)
    up, gate = (weights.matrix(f"{name}.{part}", of.inner, of.hidden) for part in ("up", "gate"))
    return middle + swiglu_ffn.body(z, up, gate, weights.matrix(f"{name}.down", of.hidden, of.inner)), new_k, new_v


__all__ = ["DecoderShape", "cached_decoder", "parameter_shapes"]

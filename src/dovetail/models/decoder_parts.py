"""The parts of a decoder layer around attention: stored weights, norms, rotation, projections, feed-forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import BY_NAME, f32, i64, u8
from dovetail.ir.graph import Builder
from dovetail.ir.value import Value
from dovetail.library.activation import activation
from dovetail.library.block_formats import FORMATS
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.library.gated_product import gated_product
from dovetail.library.heads import split_heads
from dovetail.library.layer_norm import layer_norm
from dovetail.library.partial_rope import partial_rope
from dovetail.library.rms_norm import rms_norm
from dovetail.library.rope import rope
from dovetail.library.softmax import softmax
from dovetail.models.decoder_shape import DecoderShape, Rope
from dovetail.ops.build import split_axis


class Weights:
    """Parameters as they are stored, and as f32 that is computed from them."""

    def __init__(self, builder: Builder, kinds: Mapping[str, str], ranks: Mapping[str, int] | None = None) -> None:
        self.builder, self.kinds = builder, kinds
        self.ranks = ranks or {}
        """The matrices that an adapter updates, and the rank of each update."""

    def stored(self, name: str, *shape: int) -> Value:
        """Return a parameter as the file has it."""
        kind = self.kinds.get(name, f32.name)
        if kind in FORMATS:
            of = FORMATS[kind]
            return self.builder.param(name, u8[(*shape[:-1], shape[-1] // of.elements * of.bytes)])
        return self.builder.param(name, BY_NAME[kind][shape])

    def floats(self, name: str, stored: Value) -> Value:
        """Return the numbers of a parameter, or of a part of it."""
        kind = self.kinds.get(name, f32.name)
        if kind in FORMATS:
            # The format is one of the names that the op lists.
            return dequantise_blocks(stored, format=kind)  # pyright: ignore[reportArgumentType]
        return stored if stored.dtype is f32 else ops.cast(stored, dtype=f32)

    def matrix(self, name: str, rows: int, columns: int) -> Value:
        """Return a matrix [rows, columns], transposed."""
        return ops.permute(self.floats(name, self.stored(name, rows, columns)), order=(-1, -2))

    def times(self, x: Value, name: str, rows: int, columns: int) -> Value:
        """x times a transposed matrix [rows, columns], and times its update of low rank where it has one."""
        y = x @ self.matrix(name, rows, columns)
        return y if name not in self.ranks else y + self._update(x, name, rows, columns)

    def linear(self, x: Value, name: str, rows: int, columns: int, *, biased: bool) -> Value:
        """Multiply by a matrix, and add its bias where it has one."""
        y = self.times(x, name, rows, columns)
        return y + self.vector(f"{name}.bias", rows) if biased else y

    def _update(self, x: Value, name: str, rows: int, columns: int) -> Value:
        rank = self.ranks[name]
        narrow = x @ self.matrix(f"{name}.lora_a", rank, columns)
        return narrow @ self.matrix(f"{name}.lora_b", rows, rank)

    def rows(self, name: str, rows: int, columns: int, indices: Value) -> Value:
        """Return some rows of a matrix; no others are spelled out."""
        return self.floats(name, ops.gather(self.stored(name, rows, columns), indices, axis=0))

    def vector(self, name: str, size: int) -> Value:
        return self.floats(name, self.stored(name, size))


def normed(weights: Weights, of: DecoderShape, x: Value, name: str) -> Value:
    """x after the norm of this name."""
    gain = weights.vector(f"{name}.gain", of.hidden)
    if of.style.norm == "rms":
        return rms_norm(x, gain, eps=of.eps)
    return layer_norm(x, gain, weights.vector(f"{name}.bias", of.hidden), eps=of.eps)


def angles(of: DecoderShape, how: Rope, positions: Value) -> tuple[Value, Value]:
    """Cosine and sine for each position and rotated feature."""
    width = of.rotated or of.width
    rates = how.theta ** -(np.arange(0, width, 2) / width)
    if how.slowed:
        rates = rates / np.asarray(how.slowed)
    both = np.repeat(rates, 2) if of.pairs == "interleaved" else np.concatenate([rates, rates])
    turns = ops.unsqueeze(ops.cast(positions, dtype=f32), axes=(-1,)) * leaf.constant(both, f32)
    cos, sin = ops.cos(turns), ops.sin(turns)
    return (cos, sin) if how.scale == 1.0 else (cos * how.scale, sin * how.scale)


def turned(of: DecoderShape, x: Value, cos: Value, sin: Value) -> Value:
    """Queries or keys, rotated."""
    if of.rotated and of.rotated < of.width:
        return partial_rope(x, cos, sin, rotated=of.rotated, form=of.pairs)
    return rope(x, cos, sin, form=of.pairs)


def projected(weights: Weights, of: DecoderShape, x: Value, name: str) -> tuple[Value, Value, Value]:
    """Queries, keys and values [*, heads, tokens, width], before any rotation."""
    counts = (of.heads, of.kv_heads, of.kv_heads)

    def linear(part: str, rows: int) -> Value:
        return weights.linear(x, f"{name}.{part}", rows, of.hidden, biased="qkv" in of.style.biased)

    if of.style.joined_qkv:
        flat: Sequence[Value] = split_axis(
            linear("wqkv", sum(counts) * of.width), [count * of.width for count in counts], axis=-1
        )
    else:
        flat = [linear(part, count * of.width) for part, count in zip(("wq", "wk", "wv"), counts, strict=True)]
    q, k, v = (split_heads(y, count) for y, count in zip(flat, counts, strict=True))
    if of.style.normed_heads:
        q, k = (
            rms_norm(z, weights.vector(f"{name}.{side}_norm.gain", of.width), eps=of.eps)
            for side, z in (("q", q), ("k", k))
        )
    return q, k, v


def feed_forward(weights: Weights, of: DecoderShape, x: Value, name: str) -> Value:
    """Return the feed-forward part of a layer."""
    style = of.style
    if style.has_experts:
        return _experts(weights, of, x, name)
    biased = "feed_forward" in style.biased

    def product(part: str, rows: int) -> Value:
        return weights.linear(x, f"{name}.{part}", rows, of.hidden, biased=biased)

    if not style.is_gated:
        inner = activation(style.act, product("up", of.inner))
    elif style.joined_up:
        inner = gated_product(product("up", 2 * of.inner), act=style.act, gate="first")
    else:
        up, gate = (product(part, of.inner) for part in ("up", "gate"))
        inner = activation(style.act, gate) * up
    return weights.linear(inner, f"{name}.down", of.hidden, of.inner, biased=biased)


def _experts(weights: Weights, of: DecoderShape, x: Value, name: str) -> Value:
    """Send each token through its own experts: choices are sorted by expert, and each multiplies its rows at once."""
    scores = softmax(x @ weights.matrix(f"{name}.router", of.experts, of.hidden))
    best = ops.top_k(scores, k=of.chosen, axis=-1)
    shares, chosen = best[0], best[1]
    if of.normed_choice:
        shares = shares / ops.reduce_sum(shares, axes=(-1,))
    shares, flat = ops.merge(shares, axis=-2), ops.merge(chosen, axis=-1, count=3)
    # Of equal experts, the choices stay in the order of tokens.
    order = ops.sort(flat)[1]
    experts = ops.unsqueeze(ops.iota(size=of.experts), axes=(-1,))
    passed = ops.cast(ops.less_equal(flat, experts), dtype=i64)
    ends = ops.squeeze(ops.reduce_sum(passed, axes=(-1,)), axes=(-1,))

    def product(y: Value, part: str, rows: int, columns: int) -> Value:
        """Rows of choices times the transposed matrices of their experts."""
        matrices = weights.floats(f"{name}.{part}", weights.stored(f"{name}.{part}", of.experts, rows, columns))
        return ops.grouped_matmul(y, ops.permute(matrices, order=(-1, -2)), ends)

    rows = ops.gather(ops.merge(x, axis=-2), order / of.chosen, axis=0)
    up, gate = (product(rows, part, of.inner, of.hidden) for part in ("up", "gate"))
    outer = product(activation(of.style.act, gate) * up, "down", of.hidden, of.inner)
    back = ops.split(ops.gather(outer, ops.sort(order)[1], axis=0), axis=-2, size=of.chosen)
    summed = ops.reduce_sum(back * ops.unsqueeze(shares, axes=(-1,)), axes=(-2,))
    return ops.reshape(ops.squeeze(summed, axes=(-2,)), shape=x.shape)


__all__ = ["Weights", "angles", "feed_forward", "normed", "projected", "turned"]

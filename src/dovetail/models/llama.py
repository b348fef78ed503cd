"""A Llama- or Qwen-style decoder: a whole prompt, or one token after a cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dovetail import ops
from dovetail.blocks.decoder import llama_layer
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f32, i64
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.origin import scope
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.library.rms_norm import rms_norm


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes of a decoder."""

    layers: int = 8
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 8
    inner: int = 3072
    vocabulary: int = 32000
    theta: float = 10000.0
    eps: float = 1e-5
    normed_heads: bool = False
    """Whether queries and keys are normalised head by head, as in Qwen3."""
    dtype: DType = f32
    head_width: int | None = None
    """The size of one head; None where all heads are as wide as the hidden state."""

    @property
    def width(self) -> int:
        """The size of one head."""
        return self.hidden // self.heads if self.head_width is None else self.head_width


def llama(shape: LlamaShape | None = None, *, batch: SizeLike = "b", seq: SizeLike = "s") -> Graph:
    """Token ids in, logits of every position out."""
    of = shape or LlamaShape()
    builder = Builder("llama", lines=False)
    with builder.recording():
        ids = builder.input("input_ids", i64[batch, seq])
        with scope("rope"):
            cos, sin = angles(of, ops.iota(size=ids.shape[-1]))
        x = embed(builder, of, ids)
        for index in range(of.layers):
            with scope(f"layers.{index}"):
                x = _layer(builder, of, x, cos, sin, f"layers.{index}")
        builder.output("logits", head(builder, of, x))
    return builder.graph()


def llama_step(shape: LlamaShape | None = None, *, batch: SizeLike = "b", past: SizeLike = "p") -> Graph:
    """Return the step from one token and the cached keys and values to its logits and the longer cache."""
    of = shape or LlamaShape()
    builder = Builder("llama_step", lines=False)
    with builder.recording():
        ids, position = builder.input("input_ids", i64[batch, 1]), builder.input("position", i64[1])
        with scope("rope"):
            cos, sin = angles(of, position)
        x = embed(builder, of, ids)
        for index in range(of.layers):
            cache = of.dtype[batch, of.kv_heads, past, of.width]
            old = tuple(builder.input(f"past_{side}.{index}", cache) for side in "kv")
            with scope(f"layers.{index}"):
                result = _layer(builder, of, x, cos, sin, f"layers.{index}", old)
                x = result[0]
                for number, side in enumerate("kv"):
                    builder.output(f"new_{side}.{index}", result[number + 1])
        builder.output("logits", head(builder, of, x))
    return builder.graph()


def angles(of: LlamaShape, positions: Value) -> tuple[Value, Value]:
    """Cosine and sine for each position, both halves of a head alike."""
    rates = of.theta ** -(np.arange(0, of.width, 2) / of.width)
    turns = ops.unsqueeze(ops.cast(positions, dtype=f32), axes=(-1,)) * leaf.constant(rates, f32)
    both = ops.concat(turns, turns, axis=-1)
    return ops.cast(ops.cos(both), dtype=of.dtype), ops.cast(ops.sin(both), dtype=of.dtype)


def embed(builder: Builder, of: LlamaShape, ids: Value) -> Value:
    """Return the embedding of each token."""
    with scope("embedding"):
        return ops.gather(builder.param("embedding", of.dtype[of.vocabulary, of.hidden]), ids, axis=0)


def head(builder: Builder, of: LlamaShape, x: Value) -> Value:
    """Return the logits of each position."""
    with scope("head"):
        gain = builder.param("norm.gain", of.dtype[of.hidden])
        return rms_norm(x, gain, eps=of.eps) @ builder.param("head", of.dtype[of.hidden, of.vocabulary])


def layer_weights(builder: Builder, of: LlamaShape, name: str) -> tuple[list[Value], Value | None, Value | None]:
    """Return the parameters of a layer in the order of `llama_layer`, then the gains of queries and keys."""
    hidden, wide, narrow = of.hidden, of.heads * of.width, of.kv_heads * of.width
    types = {
        "norm1.gain": of.dtype[hidden],
        "wq": of.dtype[hidden, wide],
        "wk": of.dtype[hidden, narrow],
        "wv": of.dtype[hidden, narrow],
        "wo": of.dtype[wide, hidden],
        "norm2.gain": of.dtype[hidden],
        "up": of.dtype[hidden, of.inner],
        "gate": of.dtype[hidden, of.inner],
        "down": of.dtype[of.inner, hidden],
    }
    weights = [builder.param(f"{name}.{part}", type) for part, type in types.items()]
    gains = [builder.param(f"{name}.{side}_norm.gain", of.dtype[of.width]) for side in "qk"] if of.normed_heads else []
    q_gain, k_gain = gains or (None, None)
    return weights, q_gain, k_gain


def _layer(
    builder: Builder,
    of: LlamaShape,
    x: Value,
    cos: Value,
    sin: Value,
    name: str,
    past: tuple[Value, ...] = (),
) -> Value:
    weights, q_gain, k_gain = layer_weights(builder, of, name)
    past_k, past_v = past or (None, None)
    groups = of.heads // of.kv_heads
    operands: list[Any] = [x, *weights, cos, sin, None, q_gain, k_gain, past_k, past_v]
    return llama_layer(
        *operands,
        heads=of.heads,
        kv_heads=of.kv_heads,
        groups=groups if groups > 1 else None,
        scale=1.0 / math.sqrt(of.width),
        eps=of.eps,
        causal=not past,
        keep_cache=bool(past),
    )


__all__ = ["LlamaShape", "angles", "embed", "head", "layer_weights", "llama", "llama_step"]

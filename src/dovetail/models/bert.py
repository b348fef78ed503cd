"""A BERT-style encoder."""

from __future__ import annotations

import math
from typing import Any

from dovetail import ops
from dovetail.blocks.encoder import bert_layer
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, f32, i64
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.origin import scope
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.library.layer_norm import layer_norm


@dataclass(frozen=True, slots=True)
class BertShape:
    """The sizes of an encoder; the defaults are those of MiniLM-L6."""

    layers: int = 6
    hidden: int = 384
    heads: int = 12
    inner: int = 1536
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    eps: float = 1e-12
    dtype: DType = f32


def bert(shape: BertShape | None = None, *, batch: SizeLike = "b", seq: SizeLike = "s") -> Graph:
    """Token ids, token types and a padding mask in; the hidden states of the last layer out."""
    of = shape or BertShape()
    builder = Builder("bert", lines=False)
    with builder.recording():
        ids, types = builder.input("input_ids", i64[batch, seq]), builder.input("token_type_ids", i64[batch, seq])
        mask = builder.input("attention_mask", i64[batch, seq])
        with scope("embeddings"):
            x = _embed(builder, of, ids, types)
        with scope("mask"):
            hidden = (1.0 - ops.cast(mask, dtype=of.dtype)) * _LOWEST
            bias = ops.unsqueeze(hidden, axes=(-3, -2))
        for index in range(of.layers):
            with scope(f"layers.{index}"):
                x = _layer(builder, of, x, bias, f"layers.{index}")
        builder.output("last_hidden_state", x)
    return builder.graph()


_LOWEST = -3.4028234663852886e38


def _embed(builder: Builder, of: BertShape, ids: Value, types: Value) -> Value:
    words = builder.param("embeddings.words", of.dtype[of.vocabulary, of.hidden])
    places = builder.param("embeddings.positions", of.dtype[of.positions, of.hidden])
    kinds = builder.param("embeddings.types", of.dtype[of.types, of.hidden])
    here = ops.slice_(places, axis=0, start=0, stop=ids.shape[-1])
    total = ops.gather(words, ids, axis=0) + ops.gather(kinds, types, axis=0) + here
    gain = builder.param("embeddings.norm.gain", of.dtype[of.hidden])
    bias = builder.param("embeddings.norm.bias", of.dtype[of.hidden])
    return layer_norm(total, gain, bias, eps=of.eps)


def _layer(builder: Builder, of: BertShape, x: Value, mask: Value, name: str) -> Value:
    square, row = of.dtype[of.hidden, of.hidden], of.dtype[of.hidden]
    types = {
        **{part: t for at in "qkvo" for part, t in ((f"w{at}", square), (f"b{at}", row))},
        "norm1.gain": row,
        "norm1.bias": row,
        "up": of.dtype[of.hidden, of.inner],
        "up.bias": of.dtype[of.inner],
        "down": of.dtype[of.inner, of.hidden],
        "down.bias": row,
        "norm2.gain": row,
        "norm2.bias": row,
    }
    weights = [builder.param(f"{name}.{part}", type) for part, type in types.items()]
    scale = 1.0 / math.sqrt(of.hidden // of.heads)
    operands: list[Any] = [x, *weights, mask]
    return bert_layer(*operands, heads=of.heads, scale=scale, eps=of.eps)

"""Encoders and decoders as workloads."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from dovetail.bench.net import Net
from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Encoder:
    """The sizes of an encoder."""

    layers: int
    hidden: int
    heads: int
    inner: int
    vocabulary: int = 30522
    positions: int = 512


MINILM = Encoder(6, 384, 12, 1536)
BERT_BASE = Encoder(12, 768, 12, 3072)


def encoder(of: Encoder, batch: int, seq: int) -> onnx.ModelProto:
    """Return a BERT-style encoder: ids and a padding mask in, hidden states out."""
    net = Net("encoder")
    ids = net.input("input_ids", TensorProto.INT64, [batch, seq])
    mask = net.input("attention_mask", TensorProto.INT64, [batch, seq])
    words = net.op("Gather", net.weight("words", of.vocabulary, of.hidden), ids, axis=0)
    places = net.op("Gather", net.weight("places", of.positions, of.hidden), net.array(np.arange(seq)[None]), axis=0)
    x = _norm(net, "norm", net.op("Add", words, places), of.hidden)
    # Exporters write two, and the optimiser of onnxruntime looks for both.
    wide = net.op("Unsqueeze", net.op("Unsqueeze", mask, net.ints(1)), net.ints(2))
    seen = net.op("Cast", wide, to=TensorProto.FLOAT)
    bias = net.op("Mul", net.op("Sub", net.number(1.0), seen), net.number(-3.4028234663852886e38))
    for layer in range(of.layers):
        at = f"layers.{layer}"
        x = _norm(net, f"{at}.norm1", net.op("Add", _self_attention(net, of, at, x, bias, batch, seq), x), of.hidden)
        inner = _gelu(net, net.linear(f"{at}.up", x, of.hidden, of.inner))
        x = _norm(net, f"{at}.norm2", net.op("Add", net.linear(f"{at}.down", inner, of.inner, of.hidden), x), of.hidden)
    net.output("last_hidden_state", x)
    return net.model()


def _norm(net: Net, name: str, x: str, size: int) -> str:
    gain, shift = net.vector(f"{name}.weight", size, around=1.0), net.vector(f"{name}.bias", size)
    return net.op("LayerNormalization", x, gain, shift, axis=-1, epsilon=1e-12)


def _gelu(net: Net, x: str) -> str:
    spread = net.op("Erf", net.op("Div", x, net.number(math.sqrt(2.0))))
    return net.op("Mul", net.op("Mul", x, net.op("Add", spread, net.number(1.0))), net.number(0.5))


def _heads(net: Net, x: str, batch: int, seq: int, heads: int, size: int, order: list[int]) -> str:
    return net.op("Transpose", net.op("Reshape", x, net.ints(batch, seq, heads, size)), perm=order)


def _self_attention(net: Net, of: Encoder, at: str, x: str, bias: str, batch: int, seq: int) -> str:
    size = of.hidden // of.heads
    q, k, v = (
        _heads(net, net.linear(f"{at}.{part}", x, of.hidden, of.hidden), batch, seq, of.heads, size, order)
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
    )
    scores = net.op("Add", net.op("Div", net.op("MatMul", q, k), net.number(math.sqrt(size))), bias)
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    joined = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(batch, seq, of.hidden))
    return net.linear(f"{at}.dense", joined, of.hidden, of.hidden)


@dataclass(frozen=True, slots=True)
class Decoder:
    """The sizes of a Llama-style decoder."""

    layers: int = 8
    hidden: int = 1024
    heads: int = 16
    groups: int = 8
    size: int = 64
    inner: int = 3072
    vocabulary: int = 32000


def decoder(of: Decoder, seq: int, cached: int = 0) -> onnx.ModelProto:
    """Return a decoder of `seq` tokens, or of tokens after `cached` ones whose keys and values are inputs."""
    net = Net("decoder")
    ids = net.input("input_ids", TensorProto.INT64, [1, seq])
    x = net.op("Gather", net.weight("words", of.vocabulary, of.hidden), ids, axis=0)
    angles = np.outer(np.arange(cached, cached + seq), 10000.0 ** (-np.arange(0, of.size, 2) / of.size))
    doubled = np.concatenate([angles, angles], axis=-1).astype(np.float32)[None, None]
    turn = net.array(np.cos(doubled)), net.array(np.sin(doubled))
    visible = np.where(np.arange(cached + seq)[None, :] <= np.arange(cached, cached + seq)[:, None], 0.0, -np.inf)
    mask = net.array(visible.astype(np.float32)[None, None]) if seq > 1 else None
    for layer in range(of.layers):
        past = [
            net.input(f"past_{kind}_{layer}", TensorProto.FLOAT, [1, of.groups, cached, of.size])
            for kind in ("key", "value")
            if cached
        ]
        at = f"layers.{layer}"
        h = _rms(net, f"{at}.norm1", x, of.hidden)
        x = net.op("Add", x, _grouped_attention(net, of, at, h, turn, mask, past, seq, cached))
        h = _rms(net, f"{at}.norm2", x, of.hidden)
        gate = net.linear(f"{at}.gate", h, of.hidden, of.inner, bias=False)
        up = net.linear(f"{at}.up", h, of.hidden, of.inner, bias=False)
        gated = net.op("Mul", net.op("Mul", gate, net.op("Sigmoid", gate)), up)
        x = net.op("Add", x, net.linear(f"{at}.down", gated, of.inner, of.hidden, bias=False))
    x = _rms(net, "norm", x, of.hidden)
    net.output("logits", net.linear("head", x, of.hidden, of.vocabulary, bias=False))
    return net.model()


def _rms(net: Net, name: str, x: str, size: int) -> str:
    mean = net.op("ReduceMean", net.op("Pow", x, net.number(2.0)), axes=[-1], keepdims=1)
    scale = net.op("Div", net.number(1.0), net.op("Sqrt", net.op("Add", mean, net.number(1e-5))))
    return net.op("Mul", net.vector(f"{name}.weight", size, around=1.0), net.op("Mul", x, scale))


def _rope(net: Net, x: str, turn: tuple[str, str], size: int) -> str:
    low = net.op("Slice", x, net.ints(0), net.ints(size // 2), net.ints(3))
    high = net.op("Slice", x, net.ints(size // 2), net.ints(size), net.ints(3))
    turned = net.op("Concat", net.op("Neg", high), low, axis=-1)
    return net.op("Add", net.op("Mul", x, turn[0]), net.op("Mul", turned, turn[1]))


def _grouped_attention(
    net: Net,
    of: Decoder,
    at: str,
    x: str,
    turn: tuple[str, str],
    mask: str | None,
    past: list[str],
    seq: int,
    cached: int,
) -> str:
    def project(part: str, heads: int) -> str:
        y = net.linear(f"{at}.{part}", x, of.hidden, heads * of.size, bias=False)
        return _heads(net, y, 1, seq, heads, of.size, [0, 2, 1, 3])

    q, k, v = project("query", of.heads), project("key", of.groups), project("value", of.groups)
    q, k = _rope(net, q, turn, of.size), _rope(net, k, turn, of.size)
    if past:
        k, v = net.op("Concat", past[0], k, axis=2), net.op("Concat", past[1], v, axis=2)
    width, times = cached + seq, of.heads // of.groups

    def widened(y: str) -> str:
        spread = net.op("Expand", net.op("Unsqueeze", y, net.ints(2)), net.ints(1, of.groups, times, width, of.size))
        return net.op("Reshape", spread, net.ints(1, of.heads, width, of.size))

    scores = net.op("MatMul", q, net.op("Transpose", widened(k), perm=[0, 1, 3, 2]))
    scores = net.op("Mul", scores, net.number(1.0 / math.sqrt(of.size)))
    weights = net.op("Softmax", scores if mask is None else net.op("Add", scores, mask), axis=-1)
    mixed = net.op("Transpose", net.op("MatMul", weights, widened(v)), perm=[0, 2, 1, 3])
    joined = net.op("Reshape", mixed, net.ints(1, seq, of.heads * of.size))
    return net.linear(f"{at}.dense", joined, of.heads * of.size, of.hidden, bias=False)

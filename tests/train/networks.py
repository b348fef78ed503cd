"""Six networks with a loss, at any size: what training keeps of the forward pass is judged on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from dovetail import Builder, Graph, library, ops
from dovetail.dtypes import f32, i64
from dovetail.graphs import scope
from dovetail.ir.value import Value
from dovetail.library.heads import merge_heads, split_heads
from dovetail.train import cross_entropy


@dataclass(frozen=True, slots=True)
class Width:
    """The sizes of a transformer."""

    layers: int
    hidden: int
    heads: int
    inner: int
    batch: int
    length: int
    classes: int = 64
    words: int = 1000


def mlp(rows: int = 128, sizes: tuple[int, ...] = (784, 512, 512, 10)) -> Graph:
    builder = Builder("mlp", lines=False)
    with builder.recording():
        h, labels = builder.input("x", f32[rows, sizes[0]]), builder.input("labels", i64[rows])
        for i, (k, n) in enumerate(pairwise(sizes)):
            with scope(f"layers.{i}"):
                h = h @ builder.param(f"layers.{i}.w", f32[k, n]) + builder.param(f"layers.{i}.b", f32[n])
                h = ops.relu(h) if i + 2 < len(sizes) else h
        builder.output("loss", cross_entropy(h, labels))
    return builder.graph()


@dataclass(slots=True)
class _Net:
    """Parameters below a path."""

    builder: Builder
    path: list[str] = field(default_factory=list[str])

    def __call__(self, name: str, *shape: int) -> Value:
        return self.builder.param(".".join([*self.path, name]), f32[shape])

    def within(self, name: str) -> _Net:
        return _Net(self.builder, [*self.path, name])

    def linear(self, x: Value, name: str, n: int) -> Value:
        k = x.shape[-1]
        assert isinstance(k, int)
        return x @ self(f"{name}.w", k, n) + self(f"{name}.b", n)

    def norm(self, x: Value, name: str) -> Value:
        n = x.shape[-1]
        assert isinstance(n, int)
        return library.layer_norm(x, self(f"{name}.gain", n), self(f"{name}.bias", n), eps=1e-5)


def _attended(net: _Net, x: Value, of: Width, *, causal: bool) -> Value:
    q, k, v = (split_heads(net.linear(x, name, of.hidden), of.heads) for name in "qkv")
    scale = 1 / math.sqrt(of.hidden // of.heads)
    if causal:
        seen = library.attention(q, k, v, scale=scale, causal=True, fill=float("-inf"))
    else:
        seen = library.attention(q, k, v, scale=scale)
    return net.linear(merge_heads(seen), "o", of.hidden)


def _layer(net: _Net, x: Value, of: Width, *, causal: bool, pre: bool) -> Value:
    def fed(x: Value) -> Value:
        return net.linear(library.gelu(net.linear(x, "up", of.inner)), "down", of.hidden)

    if pre:
        x = x + _attended(net, net.norm(x, "norm1"), of, causal=causal)
        return x + fed(net.norm(x, "norm2"))
    x = net.norm(x + _attended(net, x, of, causal=causal), "norm1")
    return net.norm(x + fed(x), "norm2")


def transformer(name: str, of: Width, *, causal: bool, pre: bool) -> Graph:
    """Tokens in; the mean cross entropy of a class for each."""
    builder = Builder(name, lines=False)
    net = _Net(builder)
    with builder.recording():
        ids, labels = builder.input("ids", i64[of.batch, of.length]), builder.input("labels", i64[of.batch, of.length])
        x = ops.gather(net("words", of.words, of.hidden), ids, axis=0) + net("places", of.length, of.hidden)
        x = x if pre else net.norm(x, "norm")
        for i in range(of.layers):
            with scope(f"layers.{i}"):
                x = _layer(net.within(f"layers.{i}"), x, of, causal=causal, pre=pre)
        x = net.norm(x, "norm") if pre else x
        builder.output("loss", cross_entropy(x @ net("head", of.hidden, of.classes), labels))
    return builder.graph()


def vit(of: Width, patch: int = 48) -> Graph:
    """Patches in; the cross entropy of one class for each image."""
    builder = Builder("vit", lines=False)
    net = _Net(builder)
    with builder.recording():
        patches, labels = builder.input("x", f32[of.batch, of.length, patch]), builder.input("labels", i64[of.batch])
        x = net.linear(patches, "patches", of.hidden) + net("places", of.length, of.hidden)
        for i in range(of.layers):
            with scope(f"layers.{i}"):
                x = _layer(net.within(f"layers.{i}"), x, of, causal=False, pre=True)
        x = ops.squeeze(ops.reduce_mean(net.norm(x, "norm"), axes=(-2,)), axes=(-2,))
        builder.output("loss", cross_entropy(net.linear(x, "head", of.classes), labels))
    return builder.graph()


def resnet20(batch: int = 32, image: int = 32, width: int = 16, blocks: int = 3) -> Graph:
    """Images in, batch norm in training mode."""
    builder = Builder("resnet20", lines=False)
    net = _Net(builder)

    def conv_norm(net: _Net, x: Value, n: int, k: int, stride: int) -> Value:
        channels = x.shape[1]
        assert isinstance(channels, int)
        y = ops.conv(x, net("w", n, channels, k, k), strides=stride, padding=k // 2)
        centred = y - ops.reduce_mean(y, axes=(-4, -2, -1))
        variance = ops.reduce_mean(centred * centred, axes=(-4, -2, -1))
        gain, bias = (ops.unsqueeze(net(name, n), axes=(-2, -1)) for name in ("gain", "bias"))
        return centred * ops.rsqrt(variance + 1e-5) * gain + bias

    with builder.recording():
        x, labels = builder.input("x", f32[batch, 3, image, image]), builder.input("labels", i64[batch])
        x = ops.relu(conv_norm(net.within("stem"), x, width, 3, 1))
        for stage, stride in enumerate((1, 2, 2)):
            n = width * 2**stage
            for block in range(blocks):
                s = stride if block == 0 else 1
                with scope(f"stages.{stage}.{block}"):
                    here = net.within(f"stages.{stage}.{block}")
                    y = ops.relu(conv_norm(here.within("1"), x, n, 3, s))
                    y = conv_norm(here.within("2"), y, n, 3, 1)
                    x = ops.relu(y + (conv_norm(here.within("skip"), x, n, 1, s) if x.shape != y.shape else x))
        x = ops.squeeze(ops.reduce_mean(x, axes=(-2, -1)), axes=(-2, -1))
        builder.output("loss", cross_entropy(net.linear(x, "head", 10), labels))
    return builder.graph()


NETWORKS: Mapping[str, Callable[[], Graph]] = {
    "mlp": mlp,
    "bert 6x384 8x128": lambda: transformer("bert", Width(6, 384, 12, 1536, 8, 128), causal=False, pre=False),
    "bert 12x768 2x128": lambda: transformer("bert", Width(12, 768, 12, 3072, 2, 128), causal=False, pre=False),
    "gpt 4x128 12x64": lambda: transformer("gpt", Width(4, 128, 4, 512, 12, 64, 65, 65), causal=True, pre=True),
    "vit 6x192 8x65": lambda: vit(Width(6, 192, 3, 768, 8, 65, 10)),
    "resnet20 32": resnet20,
}
"""The networks as they are measured."""

__all__ = ["NETWORKS", "Width", "mlp", "resnet20", "transformer", "vit"]

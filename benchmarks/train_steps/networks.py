"""The networks, once for all peers: each says how it does a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from train_steps.works import Mlp, Resnet, Transformer, Work, convolutions


class Tensor(Protocol):
    """What a peer computes with."""

    def __add__(self, other: Any, /) -> Any: ...


T = TypeVar("T", bound=Tensor)


class Layers(Protocol[T]):
    """The layers of a peer, over its own tensors."""

    def linear(self, x: T, weight: T, bias: T | None) -> T: ...

    def relu(self, x: T) -> T: ...

    def gelu(self, x: T) -> T: ...

    def norm(self, x: T, gain: T, bias: T) -> T: ...

    def embed(self, words: T, places: T, ids: T, tokens: int) -> T: ...

    def attend(self, qkv: T, heads: int, causal: bool) -> T:
        """Attention of queries, keys and values that one product made, with its heads merged again."""
        ...

    def unembed(self, x: T, words: T) -> T:
        """The product with a table of words."""
        ...

    def convolve(self, x: T, filters: T, stride: int, padding: int) -> T: ...

    def batch_norm(self, x: T, gain: T, bias: T) -> T:
        """By the statistics of the batch."""
        ...

    def pool(self, x: T) -> T:
        """The mean of all pixels."""
        ...


def logits(work: Work, layers: Layers[T], own: Mapping[str, T], x: T) -> T:
    """What the model makes of a batch."""
    match work:
        case Mlp():
            return _mlp(work, layers, own, x)
        case Transformer():
            return _transformer(work, layers, own, x)
        case Resnet():
            return _resnet(work, layers, own, x)


def _linear(layers: Layers[T], own: Mapping[str, T], name: str, x: T) -> T:
    return layers.linear(x, own[f"{name}.weight"], own.get(f"{name}.bias"))


def _mlp(work: Mlp, layers: Layers[T], own: Mapping[str, T], x: T) -> T:
    for i in range(len(work.sizes) - 1):
        x = _linear(layers, own, str(i), x)
        x = layers.relu(x) if i + 2 < len(work.sizes) else x
    return x


def _transformer(work: Transformer, layers: Layers[T], own: Mapping[str, T], ids: T) -> T:
    def norm(name: str, x: T) -> T:
        return layers.norm(x, own[f"{name}.gain"], own[f"{name}.bias"])

    def attend(name: str, x: T) -> T:
        qkv = _linear(layers, own, f"{name}.qkv", x)
        return _linear(layers, own, f"{name}.out", layers.attend(qkv, work.heads, work.causal))

    def feed(name: str, x: T) -> T:
        return _linear(layers, own, f"{name}.down", layers.gelu(_linear(layers, own, f"{name}.up", x)))

    x = layers.embed(own["words"], own["places"], ids, work.tokens)
    x = x if work.causal else norm("norm", x)
    for i in range(work.layers):
        if work.causal:
            x = x + attend(str(i), norm(f"{i}.norm1", x))
            x = x + feed(str(i), norm(f"{i}.norm2", x))
        else:
            x = norm(f"{i}.norm1", x + attend(str(i), x))
            x = norm(f"{i}.norm2", x + feed(str(i), x))
    return layers.unembed(norm("norm", x), own["words"]) if work.causal else _linear(layers, own, "head", x)


def _resnet(work: Resnet, layers: Layers[T], own: Mapping[str, T], x: T) -> T:
    listed = {name: (window, stride) for name, _, _, window, stride in convolutions(work)}

    def convolve(name: str, x: T) -> T:
        window, stride = listed[name]
        y = layers.convolve(x, own[f"{name}.filter"], stride, window // 2)
        return layers.batch_norm(y, own[f"{name}.gain"], own[f"{name}.bias"])

    x = layers.relu(convolve("stem", x))
    for stage in range(len(work.stages)):
        for block in range(work.blocks):
            name = f"{stage}.{block}"
            y = convolve(f"{name}.2", layers.relu(convolve(f"{name}.1", x)))
            x = layers.relu(y + (convolve(f"{name}.short", x) if f"{name}.short" in listed else x))
    return _linear(layers, own, "head", layers.pool(x))


__all__ = ["Layers", "logits"]

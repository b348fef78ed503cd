"""A ViT and a Whisper-like encoder on an NVIDIA GPU beside torch: fp16, batch 1, pre-norm layers without a mask.

    PYTHONPATH=src python3 benchmarks/cuda/encoders.py [--shape NAME ...] [--modes reduce-overhead] [--kernels]

Every shape is measured twice, with layers as launches and as passes of one persistent kernel where that can be, whatever
the cost model says; the line says what it chooses. `models.py` says how times and errors are taken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dovetail
from dovetail import f16, library, ops
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.value import Value

sys.path.insert(0, str(Path(__file__).parent))

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Layers:
    """The sizes of pre-norm layers."""

    layers: int
    hidden: int
    heads: int
    inner: int

    @property
    def width(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class VitShape:
    """The sizes of a ViT: patches of an image and a token of their class."""

    of: Layers
    image: int = 224
    patch: int = 16
    classes: int = 1000

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2 + 1

    @property
    def fed(self) -> tuple[int, ...]:
        return 1, 3, self.image, self.image


@dataclass(frozen=True, slots=True)
class WhisperShape:
    """The sizes of a Whisper-like encoder: two convolutions along time, the second with stride 2."""

    of: Layers
    mels: int = 80
    frames: int = 3000

    @property
    def tokens(self) -> int:
        return self.frames // 2

    @property
    def fed(self) -> tuple[int, ...]:
        return 1, self.mels, self.frames


Shape = VitShape | WhisperShape
SHAPES: Mapping[str, Shape] = {
    "vit_tiny": VitShape(Layers(12, 192, 3, 768)),
    "vit_base": VitShape(Layers(12, 768, 12, 3072)),
    "whisper_tiny": WhisperShape(Layers(4, 384, 6, 1536)),
    "whisper_base": WhisperShape(Layers(6, 512, 8, 2048)),
    # One second of sound, as a stream brings it.
    "whisper_second": WhisperShape(Layers(6, 512, 8, 2048), frames=100),
}


def graph_of(shape: Shape) -> Graph:
    """An image or the spectrum of a sound in; logits of classes, or hidden states, out."""
    of, builder = shape.of, Builder("encoder", lines=False)

    def vector(name: str, size: int) -> Value:
        return builder.param(name, f16[size])

    def linear(name: str, x: Value, into: int, out: int) -> Value:
        return x @ builder.param(name, f16[into, out]) + vector(f"{name}.bias", out)

    def norm(name: str, x: Value) -> Value:
        return library.layer_norm.body(
            x, vector(f"{name}.gain", of.hidden), vector(f"{name}.shift", of.hidden), eps=EPS
        )

    def attention(at: str, x: Value) -> Value:
        q, k, v = (
            ops.permute(
                ops.split(linear(f"{at}.w{part}", x, of.hidden, of.hidden), axis=-1, size=of.width),
                order=(-4, -2, -3, -1),
            )
            for part in "qkv"
        )
        mixed = library.attention.body(q, k, v, scale=of.width**-0.5)
        joined = ops.merge(ops.permute(mixed, order=(-4, -2, -3, -1)), axis=-1)
        return linear(f"{at}.wo", joined, of.hidden, of.hidden)

    with builder.recording():
        x = _stem(builder, shape, builder.input("x", f16[shape.fed]))
        for index in range(of.layers):
            at = f"layers.{index}"
            x = x + attention(at, norm(f"{at}.norm1", x))
            inner = library.gelu.body(linear(f"{at}.up", norm(f"{at}.norm2", x), of.hidden, of.inner))
            x = x + linear(f"{at}.down", inner, of.inner, of.hidden)
        x = norm("norm", x)
        if isinstance(shape, VitShape):
            x = linear("head", x[:, 0], of.hidden, shape.classes)
        builder.output("y", x)
    return builder.graph()


def _stem(builder: Builder, shape: Shape, x: Value) -> Value:
    """The tokens of an input, with their places."""
    hidden = shape.of.hidden
    places = builder.param("places", f16[shape.tokens, hidden])
    if isinstance(shape, VitShape):
        w = builder.param("patches", f16[hidden, 3, shape.patch, shape.patch])
        bias = builder.param("patches.bias", f16[hidden, 1, 1])
        cells = ops.merge(ops.conv(x, w, strides=shape.patch) + bias, axis=-1)
        tokens = ops.permute(cells, order=(-3, -1, -2))
        return ops.concat(builder.param("class", f16[1, 1, hidden]), tokens, axis=-2) + places
    for name, into, stride in (("conv1", shape.mels, 1), ("conv2", hidden, 2)):
        w, bias = builder.param(name, f16[hidden, into, 3]), builder.param(f"{name}.bias", f16[hidden, 1])
        x = library.gelu.body(ops.conv(x, w, strides=stride, padding=1) + bias)
    return ops.permute(x, order=(-3, -1, -2)) + places


def weights_of(graph: Graph) -> dict[str, Any]:
    """Parameters that keep activations near one."""
    rng, found = np.random.default_rng(0), dict[str, Any]()
    for value in graph.parameters:
        name, shape = str(value.attrs["name"]), tuple(int(str(n)) for n in value.shape)
        content = rng.standard_normal(shape, dtype=np.float32)
        if "gain" in name:
            content = 1.0 + 0.1 * content
        elif "bias" in name or "shift" in name:
            content *= np.float32(0.1)
        elif name not in ("places", "class"):
            # Matrices are [in, out], and windows [out, in, ...].
            into = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
            content *= np.float32(into**-0.5)
        found[name] = content.astype(np.float16)
    return found


def feed_of(shape: Shape) -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal(shape.fed, dtype=np.float32).astype(np.float16)}

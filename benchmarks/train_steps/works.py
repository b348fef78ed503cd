"""Sizes, weights and batches of the models, which every peer reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATE, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
"""Of AdamW."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """Layers with relu between them, on images of digits."""

    sizes: tuple[int, ...] = (784, 512, 512, 10)
    batch: int = 128


@dataclass(frozen=True, slots=True)
class Transformer:
    """An encoder with norms after each part, or a causal decoder with norms before them and a tied head."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int
    classes: int
    batch: int
    tokens: int
    causal: bool


@dataclass(frozen=True, slots=True)
class Resnet:
    """ResNet-20 on images of 32 × 32, batch norms by the statistics of the batch."""

    batch: int = 32
    stages: tuple[tuple[int, int], ...] = ((16, 1), (32, 2), (64, 2))
    blocks: int = 3


Work = Mlp | Transformer | Resnet
WORKS: dict[str, Work] = {
    "mlp": Mlp(),
    "bert_8x128": Transformer(6, 384, 12, 30522, 512, 64, 8, 128, causal=False),
    "gpt_12x64": Transformer(4, 128, 4, 65, 64, 65, 12, 64, causal=True),
    "gpt_8x256": Transformer(6, 384, 6, 65, 256, 65, 8, 256, causal=True),
    "resnet20_32": Resnet(),
}


def convolutions(work: Resnet) -> list[tuple[str, int, int, int, int]]:
    """Each convolution: name, channels before and after, window, stride."""
    found, before = [("stem", 3, work.stages[0][0], 3, 1)], work.stages[0][0]
    for stage, (channels, stride) in enumerate(work.stages):
        for block in range(work.blocks):
            name, own = f"{stage}.{block}", stride if block == 0 else 1
            found += [(f"{name}.1", before, channels, 3, own), (f"{name}.2", channels, channels, 3, 1)]
            if before != channels or own != 1:
                found.append((f"{name}.short", before, channels, 1, own))
            before = channels
    return found


def shapes(work: Work) -> dict[str, tuple[tuple[int, ...], float]]:
    """Each weight: its shape, and the deviation that it is drawn with; gains are 1 and biases 0."""
    found: dict[str, tuple[tuple[int, ...], float]] = {}
    match work:
        case Mlp():
            for i, (k, n) in enumerate(zip(work.sizes, work.sizes[1:], strict=False)):
                found |= {f"{i}.weight": ((k, n), k**-0.5), f"{i}.bias": ((n,), 0)}
        case Transformer():
            d = work.width
            found |= {"words": ((work.vocabulary, d), 0.02), "places": ((work.positions, d), 0.02)}
            found |= {"norm.gain": ((d,), 1), "norm.bias": ((d,), 0)}
            for i in range(work.layers):
                for part, k, n in (("qkv", d, 3 * d), ("out", d, d), ("up", d, 4 * d), ("down", 4 * d, d)):
                    found |= {f"{i}.{part}.weight": ((k, n), 0.02), f"{i}.{part}.bias": ((n,), 0)}
                for part in ("norm1", "norm2"):
                    found |= {f"{i}.{part}.gain": ((d,), 1), f"{i}.{part}.bias": ((d,), 0)}
            if not work.causal:
                found["head.weight"] = ((d, work.classes), 0.02)
        case Resnet():
            for name, before, after, window, _ in convolutions(work):
                deviation = (2 / (before * window**2)) ** 0.5
                found[f"{name}.filter"] = ((after, before, window, window), deviation)
                found |= {f"{name}.gain": ((after,), 1), f"{name}.bias": ((after,), 0)}
            found |= {"head.weight": ((work.stages[-1][0], 10), 0.1), "head.bias": ((10,), 0)}
    return found


def weights(work: Work) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    found: dict[str, NDArray[np.float32]] = {}
    for name, (shape, deviation) in shapes(work).items():
        drawn = rng.normal(size=shape) * deviation if len(shape) > 1 else np.full(shape, deviation)
        found[name] = drawn.astype(np.float32)
    return found


def batch(work: Work) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """What the model reads, and the labels."""
    rng = np.random.default_rng(1)
    match work:
        case Mlp():
            return rng.normal(size=(work.batch, work.sizes[0])).astype(np.float32), rng.integers(0, 10, work.batch)
        case Transformer():
            shape = (work.batch, work.tokens)
            return rng.integers(0, work.vocabulary, shape), rng.integers(0, work.classes, shape)
        case Resnet():
            return rng.normal(size=(work.batch, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, work.batch)

"""Inputs that look like real ones, the same in every run: pictures, lines of strokes, sound, words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def picture(seed: int, height: int, width: int) -> Array:
    """Soft colours with a few hard-edged patches and a little noise, [3, height, width] in 0..1."""
    rng = np.random.default_rng(seed)
    y, x = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)[None, :]
    image = np.zeros((3, height, width))
    for channel in image:
        for _ in range(4):
            a, b, phase = rng.uniform(0.5, 6, 3)
            channel += np.sin(2 * np.pi * (a * x + b * y) + phase)
    image: Array = (image - image.min()) / (image.max() - image.min())
    for _ in range(6):
        top, left = rng.integers(0, height * 3 // 4), rng.integers(0, width * 3 // 4)
        patch = np.s_[:, top : top + height // 5, left : left + width // 5]
        image[patch] = rng.uniform(0, 1, (3, 1, 1))
    noisy: Array = image + rng.normal(0, 0.02, image.shape)
    return np.clip(noisy, 0, 1).astype(np.float32)


def strokes(seed: int, height: int, width: int) -> Array:
    """Dark strokes on light paper as a line of text has them, [3, height, width] in 0..1."""
    rng = np.random.default_rng(seed)
    paper = np.full((height, width), 0.95)
    for left in range(4, width - 8, 9):
        for _ in range(3):
            top, tall, wide = rng.integers(height // 6, height // 2), rng.integers(3, height // 2), rng.integers(1, 4)
            at = left + int(rng.integers(0, 5))
            paper[top : top + tall, at : at + wide] = rng.uniform(0.05, 0.2)
    return np.clip(paper + rng.normal(0, 0.02, (3, height, width)), 0, 1).astype(np.float32)


def page(seed: int, height: int, width: int, line: int) -> Array:
    """Light paper with a line of strokes every other `line` rows, [3, height, width] in 0..1."""
    paper = np.full((3, height, width), 0.95, np.float32)
    for top in range(line // 2, height - line, 2 * line):
        paper[:, top : top + line, line // 2 : width - line // 2] = strokes(seed + top, line, width - line // 2 * 2)
    return paper


def sound(seed: int, samples: int, rate: int) -> Array:
    """A voiced tone with overtones, swelling, in noise; [samples] in -1..1."""
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / rate
    pitch = rng.uniform(100, 220)
    voice = np.sum([np.sin(2 * np.pi * pitch * k * t + rng.uniform(0, 6)) / k for k in range(1, 9)], axis=0)
    return (0.2 * voice * np.hanning(samples) + rng.normal(0, 0.01, samples)).astype(np.float32)


def tokens(seed: int, lengths: tuple[int, ...], vocabulary: int) -> dict[str, Array]:
    """Word pieces between the marks that BERT puts around a sentence, padded to the longest."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((len(lengths), max(lengths)), np.int64)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = [101, *rng.integers(1996, vocabulary, length - 2), 102]
        mask[row, :length] = 1
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}

"""Inputs that look like real ones, the same in every run: pictures, lines of strokes, sound, words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def letters(seed: int, shape: tuple[int, ...], low: int, high: int) -> Array:
    """Numbers of letters, the small ones more often, as letters are in a language; in low..high - 1."""
    rng = np.random.default_rng(seed)
    return low + (rng.beta(1.0, 2.0, shape) * (high - low)).astype(np.int64)


def one_hot(seed: int, shape: tuple[int, ...], size: int) -> Array:
    """Letters as vectors of 0 and 1, [*shape, size]."""
    return np.eye(size, dtype=np.float32)[letters(seed, shape, 0, size)]


def log_mel(seed: int, frames: int, bands: int) -> Array:
    """The logarithm of the energy of sound by pitch and time, scaled to about -1..1, [bands, frames]."""
    waves = sound(seed, 160 * frames, 16000).astype(np.float64)
    width = max(400, 4 * bands + 2)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(waves, width // 2), width)[::160][:frames]
    power = np.abs(np.fft.rfft(windows * np.hanning(width)))[:, 1 : 2 * bands + 1] ** 2
    logs = np.log10(np.maximum(power.reshape(frames, bands, 2).sum(-1), 1e-10)).T
    return ((np.maximum(logs, logs.max() - 8) + 4) / 4).astype(np.float32)


def varied(feeds: Sequence[Mapping[str, Array]], count: int) -> Iterator[dict[str, Array]]:
    """Feeds like those given: floats with a little noise, integers in another order along the last axis."""
    rng = np.random.default_rng(77)
    for number in range(count):
        feed = feeds[number % len(feeds)]
        yield {name: _varied(array, number // len(feeds) + 1, rng) for name, array in feed.items()}


def _varied(array: Array, number: int, rng: np.random.Generator) -> Array:
    if array.dtype.kind == "f":
        spread = 0.05 * float(array.astype(np.float64).std())
        return np.asarray(array + rng.normal(0, spread, array.shape), array.dtype)
    return np.roll(array, number, -1) if array.ndim else array

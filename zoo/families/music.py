"""Pitch: of a voice, and of every note."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.inputs import sound
from zoo.model import Model


def models() -> Iterator[Model]:
    """All of them."""
    edges = {"fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
    sung = tuple({"audio": sound(seed, samples, 16000)[None], **edges} for seed, samples in ((1, 16000), (2, 24000)))
    yield Model("swift-f0", "swift-f0", "model.onnx", sung)
    played = np.stack([sound(seed, 43844, 22050) for seed in (1, 2)])[..., None]
    feeds = ({"serving_default_input_2:0": played[:1]}, {"serving_default_input_2:0": played})
    yield Model("basic-pitch", "basic-pitch", "nmp.onnx", feeds)

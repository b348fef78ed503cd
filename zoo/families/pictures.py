"""Pictures: detection, classification, super-resolution, watermarks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.inputs import picture, strokes
from zoo.model import Model


def models() -> Iterator[Model]:
    """All of them."""
    shown = tuple({"images": picture(7, *size)[None]} for size in ((320, 320), (256, 192)))
    yield Model("nudenet", "nudenet", "320n.onnx", shown)
    means = np.array([104, 117, 123], np.float32)
    seen = picture(8, 224, 224)[::-1].transpose(1, 2, 0)[None] * 255 - means
    yield Model("opennsfw", "opennsfw", "open-nsfw.onnx", ({"input:0": seen.astype(np.float32)},))
    squares = [np.stack([picture(seed, side, side) for seed in range(count)]) for side, count in ((64, 8), (96, 2))]
    yield Model("chessvision", "chessvision", "chess_piece_classifier.onnx", tuple({"images": s} for s in squares))
    frames = [picture(21, *size)[None, :, None] * 2 - 1 for size in ((96, 128), (128, 160))]
    bits = np.random.default_rng(22).integers(0, 2, (1, 32)).astype(np.float32)
    yield Model("rivagan encoder", "rivagan", "rivagan_encoder.onnx", tuple({"frame": f, "data": bits} for f in frames))
    yield Model("rivagan decoder", "rivagan", "rivagan_decoder.onnx", tuple({"frame": f} for f in frames))
    yield Model("espcn", "qonnx", "espcn.onnx", ({"onnx::Relu_0": picture(23, 128, 128)[None]},))
    yield Model("mnist cntk", "qonnx", "mnist.onnx", ({"Input3": (1 - strokes(24, 28, 28)[:1][None]) * 255},))

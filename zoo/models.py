"""The models that are judged: where each file is, what is fixed when it is imported, and what it is fed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.inputs import page, picture, sound, strokes

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Model:
    """One way to use one file: `feeds` are runs of one compilation."""

    name: str
    pin: str
    file: str
    feeds: tuple[Mapping[str, Array], ...]
    fixed: Mapping[str, Array | int] = field(default_factory=dict[str, "Array | int"])
    plausible: float = 1e-3
    """An error of onnxruntime beyond this is no rounding: then one of the two means something else by the model."""


def models() -> Iterator[Model]:
    """All of them, with their inputs."""
    yield from _silero()
    yield from _rapidocr()
    yield Model(
        "nudenet", "nudenet", "320n.onnx", tuple({"images": picture(7, *s)[None]} for s in ((320, 320), (256, 192)))
    )
    means = np.array([104, 117, 123], np.float32)
    shown = picture(8, 224, 224)[::-1].transpose(1, 2, 0)[None] * 255 - means
    yield Model("opennsfw", "opennsfw", "open-nsfw.onnx", ({"input:0": shown.astype(np.float32)},))
    # Whole numbers inside turn a difference in the last place into a step of 1 %, for either runtime.
    heard = tuple({"input_features": _mel(seed)} for seed in range(9, 15))
    yield Model("smart-turn", "smart-turn", "smart-turn-v3.2-cpu.onnx", heard, plausible=5e-2)


def _silero() -> Iterator[Model]:
    """Chunks of 32 ms with what was before. The rate is fixed where it is an input: it decides between two networks."""
    state = np.random.default_rng(3).normal(0, 0.1, (2, 1, 128)).astype(np.float32)
    chunks = {rate: tuple(sound(seed, rate * 36 // 1000, rate)[None] for seed in (1, 2)) for rate in (16000, 8000)}
    for rate, sounds in chunks.items():
        feeds = tuple({"input": s, "state": state} for s in sounds)
        for name, file in (("", "silero_vad.onnx"), (" ifless", "silero_vad_op18_ifless.onnx")):
            yield Model(f"silero{name} {rate // 1000}k", "silero", file, feeds, {"sr": np.array(rate)})
    feeds = tuple({"input": s, "state": state} for s in chunks[16000])
    yield Model("silero op15", "silero", "silero_vad_16k_op15.onnx", feeds, {"sr": np.array(16000)})
    yield Model("silero half", "silero", "silero_vad_half.onnx", feeds)
    yield Model("silero openvino", "silero", "silero_vad_openvino_16k.onnx", feeds)
    h, c = state[:1], state[1:]
    rows = [np.concatenate([sound(seed, 576, 16000)[None] for seed in range(count)]) for count in (5, 11)]
    yield Model(
        "silero sequence", "silero", "silero_vad_16k_sequence.onnx", tuple({"input": r, "h": h, "c": c} for r in rows)
    )


def _rapidocr() -> Iterator[Model]:
    mean, spread = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    pages = [page(4, height, width, line) for height, width, line in ((160, 224, 24), (96, 320, 32))]
    scaled = [((p - mean[:, None, None]) / spread[:, None, None]).astype(np.float32)[None] for p in pages]
    yield Model("rapidocr det", "rapidocr", "ch_PP-OCRv4_det_infer.onnx", tuple({"x": p} for p in scaled))
    lines = [np.stack([(strokes(s, 48, width) - 0.5) / 0.5 for s in (5, 6)]) for width in (160, 320)]
    yield Model("rapidocr rec", "rapidocr", "ch_PP-OCRv4_rec_infer.onnx", tuple({"x": line} for line in lines))
    turned = np.stack([(strokes(s, 48, 192) - 0.5) / 0.5 for s in (5, 6)])
    yield Model("rapidocr cls", "rapidocr", "ch_ppocr_mobile_v2.0_cls_infer.onnx", ({"x": turned},))


def _mel(seed: int) -> Array:
    """A picture of sound as speech models take it: the logarithm of energy by pitch and time, scaled to about -1..1."""
    waves = sound(seed, 16000 * 8, 16000).astype(np.float64)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(waves, 200), 400)[::160][:800] * np.hanning(400)
    power = np.abs(np.fft.rfft(frames))[:, 1:161].reshape(800, 80, 2).sum(-1) ** 2
    logs = np.log10(np.maximum(power, 1e-10)).T
    return ((np.maximum(logs, logs.max() - 8) + 4) / 4).astype(np.float32)[None]

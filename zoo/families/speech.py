"""Front ends of speech recognition (log-mel features, resampling) and models that grade speech."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.inputs import log_mel, sound
from zoo.model import Array, Model


def models() -> Iterator[Model]:
    """All of them."""
    for name in (
        "gigaam_v2",
        "gigaam_v3_conv",
        "kaldi",
        "nemo80",
        "nemo128_conv",
        "wespeaker",
        "whisper80",
        "whisper80_conv",
        "whisper128",
    ):
        feeds = (_waves(1, 48000), _waves(2, 80000))
        # onnxruntime's STFT sums in float32, and the logarithm of near silence magnifies that: 2e-3 for Whisper.
        plausible = 5e-3 if name in ("whisper80", "whisper128") else 1e-3
        yield Model(f"front end {name}", "front-ends", f"{name}.onnx", feeds, plausible=plausible)
    for theirs, ours in ((8, 16), (44, 16), (48, 16)):
        name = f"resample_{theirs}_{ours}"
        rate = {8: 8000, 44: 44100, 48: 48000}[theirs]
        yield Model(f"front end {name}", "front-ends", f"{name}.onnx", (_waves(1, 2 * rate), _waves(2, 3 * rate)))
    yield from _quality()


def _waves(batch: int, samples: int) -> dict[str, Array]:
    """Sounds of which all but the first are shorter than the longest, padded with silence."""
    lengths = np.array([samples - 4000 * row for row in range(batch)], np.int64)
    waves = np.zeros((batch, samples), np.float32)
    for row, length in enumerate(lengths):
        waves[row, :length] = sound(row + 31, int(length), 16000)
    return {"waveforms": waves, "waveforms_lens": lengths}


def _quality() -> Iterator[Model]:
    """Grades of noise suppression, echo cancellation and loss concealment, as keras and torch export them."""
    h = np.zeros((4, 1, 64), np.float32)
    echoes = [
        np.stack([log_mel(seed + part, frames, 160).T for part in range(3)])[None]
        for seed, frames in ((1, 120), (5, 200))
    ]
    yield Model("aecmos", "speech-quality", "aecmos.onnx", tuple({"input": e, "h0": h} for e in echoes))
    wide = np.zeros((4, 1, 96), np.float32)
    yield Model("aecmos 48k", "speech-quality", "aecmos_48k.onnx", tuple({"input": e, "h0": wide} for e in echoes))
    power = np.stack([log_mel(seed, 901, 161).T for seed in (1, 2)])
    yield Model("dnsmos bak_ovr", "speech-quality", "bak_ovr.onnx", ({"input_1": power[:1]}, {"input_1": power}))
    mel = np.stack([log_mel(seed, 900, 120).T for seed in (1, 2)])
    yield Model("dnsmos p808", "speech-quality", "model_v8.onnx", ({"input_1": mel[:1]}, {"input_1": mel}))
    waves = np.stack([sound(seed, 144160, 16000) for seed in (1, 2)])
    yield Model("dnsmos", "speech-quality", "sig_bak_ovr.onnx", ({"input_1": waves[:1]}, {"input_1": waves}))
    rater = np.random.default_rng(7).normal(0, 1, (1, 64)).astype(np.float32)
    lost = [log_mel(seed, frames, 257).T[None, None] for seed, frames in ((1, 150), (2, 240))]
    feeds = tuple({"degraded_audio": a, "rater_embed": rater} for a in lost)
    yield Model("plcmos", "speech-quality", "plcmos_v2.onnx", feeds)

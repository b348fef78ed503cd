"""Text and bytes: file types, secrets, diacritics, pronunciation, word boundaries, readings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.inputs import letters, one_hot
from zoo.model import Model


def models() -> Iterator[Model]:
    """All of them."""
    files = letters(1, (3, 1536), 1, 257)
    yield Model(
        "magika v1", "magika-v1", "model.onnx", tuple({"bytes": f.astype(np.float32)} for f in (files[:1], files))
    )
    files = letters(2, (3, 2048), 0, 257).astype(np.int32)
    yield Model("magika v3", "magika-v3", "model.onnx", ({"bytes": files[:1]}, {"bytes": files}))
    hebrew = [letters(3, shape, 1, 43).astype(np.int32) for shape in ((1, 40), (2, 90))]
    yield Model("nakdimon", "nakdimon", "Nakdimon.onnx", tuple({"input": h} for h in hebrew))
    lines = tuple(
        {
            "feature_input": (letters(4, (batch, 529), 0, 8) == 0).astype(np.float32),
            "line_input": one_hot(5, (batch, 160), 101),
            "value_input": one_hot(6, (batch, 64), 101),
            "variable_input": one_hot(7, (batch, 32), 101),
        }
        for batch in (1, 8)
    )
    yield Model("credsweeper", "credsweeper", "ml_model.onnx", lines)
    yield from _pronunciation()
    yield from _thai_and_khmer()
    yield Model("yomi trees", "yomi", "nani_model.onnx", tuple({"input": _known(batch)} for batch in (1, 12)))


def _known(batch: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Six features of a word, each one of a few that are known; [batch, 131]."""
    return np.concatenate(
        [one_hot(30 + part, (batch,), wide) for part, wide in enumerate((21, 22, 22, 22, 22, 22))], -1
    )


def _pronunciation() -> Iterator[Model]:
    """Letters to sounds, and the marks of vowels: the front ends of speech synthesis."""
    spelled = tuple({"input_1": one_hot(8, (1, length), 28)} for length in (9, 14))
    yield Model("g2p lstm encoder", "g2p", "encoder_model.onnx", spelled)
    rng = np.random.default_rng(9)
    state = {name: np.tanh(rng.normal(0, 1, (1, 256))).astype(np.float32) for name in ("input_3", "input_4")}
    yield Model("g2p lstm decoder", "g2p", "decoder_model.onnx", ({"input_2": one_hot(10, (1, 1), 32), **state},))
    masked = letters(11, (2, 32), 0, 32)
    yield Model("g2p bert", "g2p", "bert_mlm.onnx", ({"input_1": masked[:1]}, {"input_1": masked}))
    yield Model("g2p transformer", "g2p-transformer", "tiny-pron.onnx", ({"text": letters(12, (1, 28), 1, 29)},))
    arabic = tuple(
        {
            "char_inputs": letters(13, (batch, length), 1, 54),
            "diac_inputs": np.zeros((batch, length), np.int64),
            "input_lengths": np.full(batch, length, np.int64),
        }
        for batch, length in ((1, 24), (2, 61))
    )
    yield Model("tashkeel", "tashkeel", "model.onnx", arabic)


def _thai_and_khmer() -> Iterator[Model]:
    windows = [
        {
            "input_1": letters(14, (n, 21), 0, 178).astype(np.float32),
            "input_2": letters(15, (n, 21), 0, 12).astype(np.float32),
        }
        for n in (12, 40)
    ]
    yield Model("deepcut", "thai", "deepcut.onnx", tuple(windows))
    words = tuple(
        {"input_tensor": letters(16, (1, n), 3, 94), "input_lengths": np.array([n], np.int32)} for n in (7, 11)
    )
    yield Model("thai2rom encoder", "thai", "thai2rom_encoder.onnx", words)
    rng = np.random.default_rng(17)
    step = {
        "decoder_input": np.array([[5]], np.int32),
        "decoder_hidden_1": np.tanh(rng.normal(0, 1, (1, 1, 256))).astype(np.float32),
        "encoder_outputs": np.tanh(rng.normal(0, 1, (1, 11, 256))).astype(np.float32),
        "mask": np.ones((1, 11), np.float32),
    }
    yield Model("thai2rom decoder", "thai", "thai2rom_decoder.onnx", (step,))
    khmer = tuple(
        {"ids": letters(18, (b, n), 1, 512), "cls": letters(19, (b, n), 0, 10)} for b, n in ((1, 48), (2, 120))
    )
    yield Model("khmercut int8", "khmercut", "model.int8.onnx", khmer, plausible=1e-2)

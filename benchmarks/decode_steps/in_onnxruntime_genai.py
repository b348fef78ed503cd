"""The same by ONNX Runtime GenAI, from the folder that onnx_folder.py writes beside a GGUF file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOM = 4096
"""Positions of its cache."""


class OnnxSequence:
    """One sequence: tokens in, logits out."""

    def __init__(self, folder: Path, threads: int) -> None:
        api: Any = importlib.import_module("onnxruntime_genai")
        self.numpy: Any = importlib.import_module("numpy")
        config = api.Config(str(folder))
        sessions = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": sessions}}}))
        self.model = api.Model(config)
        asked = api.GeneratorParams(self.model)
        asked.set_search_options(max_length=ROOM)
        self.generator = api.Generator(self.model, asked)

    def extend(self, tokens: Sequence[int]) -> Any:
        """Take tokens in; the logits after the last of them."""
        self.generator.append_tokens(self.numpy.array([tokens], self.numpy.int32))
        return self.generator.get_logits()

    def logits(self, tokens: Sequence[int]) -> Any:
        """The same as one row."""
        return self.extend(tokens).reshape(-1)

    def trim(self, count: int) -> None:
        """Forget all tokens but the first ones."""
        self.generator.rewind_to(count)


def load(path: str, threads: int, peer: str) -> OnnxSequence:
    """A sequence of the model in a file, whose folder is beside it."""
    folder = Path(path).with_suffix(".onnxruntime")
    if not folder.is_dir():
        raise RuntimeError("it reads no GGUF file, and no folder was written for this one")
    return OnnxSequence(folder, threads)

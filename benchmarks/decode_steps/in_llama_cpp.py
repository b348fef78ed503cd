"""The same by llama.cpp, through the functions that llama-cpp-python declares."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

ROOM = 4096
"""Positions of its cache."""


class LlamaSequence:
    """One sequence: tokens in, logits out."""

    def __init__(self, path: str, threads: int, has_flash_attention: bool) -> None:
        api: Any = importlib.import_module("llama_cpp")
        self.api = api
        api.llama_backend_init()
        self.quiet = api.llama_log_callback(_nothing)
        api.llama_log_set(self.quiet, None)
        self.model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        asked = api.llama_context_default_params()
        asked.n_ctx, asked.n_batch, asked.n_ubatch = ROOM, ROOM, 512
        asked.n_threads = asked.n_threads_batch = threads
        asked.flash_attn_type = int(has_flash_attention)
        asked.no_perf = True
        self.context = api.llama_init_from_model(self.model, asked)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context")
        self.memory = api.llama_get_memory(self.context)
        self.vocabulary = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model)))

    def extend(self, tokens: Sequence[int]) -> Any:
        """Take tokens in; the logits after the last of them."""
        api = self.api
        given = (api.llama_token * len(tokens))(*tokens)
        if status := api.llama_decode(self.context, api.llama_batch_get_one(given, len(tokens))):
            raise RuntimeError(f"llama_decode gives {status}")
        return api.llama_get_logits_ith(self.context, -1)

    def logits(self, tokens: Sequence[int]) -> Any:
        """The same as an array."""
        numpy: Any = importlib.import_module("numpy")
        return numpy.ctypeslib.as_array(self.extend(tokens), (self.vocabulary,)).copy()

    def trim(self, count: int) -> None:
        """Forget all tokens but the first ones."""
        self.api.llama_memory_seq_rm(self.memory, 0, count, -1)


def _nothing(level: int, words: bytes, data: Any) -> None:
    """What it would log."""


def load(path: str, threads: int, peer: str) -> LlamaSequence:
    """A sequence of the model in a file."""
    return LlamaSequence(path, threads, peer.endswith("fa"))

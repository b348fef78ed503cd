"""One sequence of a decoder: its KV cache, and the tokens that it holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.errors import OptionError
from dovetail.ir.literal import Array
from dovetail.models.decoder_shape import DecoderShape
from dovetail.runtime.program import Program

FAR = 1 << 40
"""A position that never comes: it hides a row of the cache."""
PADDING = 32
"""Rows of the cache that a run looks at come in multiples of this, so that few sizes are prepared."""
FIRST_ROOM = 256
CHUNK = 512
"""Tokens of a prompt that one run takes."""


class Session:
    """The KV cache of one sequence. It grows by half without a new compilation; runs write their rows in place."""

    def __init__(self, shape: DecoderShape, prompt: Program, step: Program) -> None:
        self.shape, self._prompt, self._step = shape, prompt, step
        self.tokens: list[int] = []
        """The tokens whose keys and values the cache holds."""
        self._room = 0
        self._caches: dict[str, Array] = {}

    def extend(self, tokens: Sequence[int]) -> Array:
        """Take tokens in; the logits after the last of them."""
        check_tokens(self.shape, tokens, len(self.tokens))
        self._grow(len(self.tokens) + len(tokens))
        logits = np.empty(0, np.float32)
        for start in range(0, len(tokens), CHUNK):
            logits = self._run(tokens[start : start + CHUNK])
        return logits

    def trim(self, count: int) -> None:
        """Forget all tokens but the first ones."""
        if not 0 <= count <= len(self.tokens):
            raise OptionError(f"{count} of {len(self.tokens)} tokens", hint="keep as many as there are, or fewer")
        del self.tokens[count:]

    def _run(self, tokens: Sequence[int]) -> Array:
        first, end = len(self.tokens), len(self.tokens) + len(tokens)
        padded = min(-(-end // PADDING) * PADDING, self._room)
        keys = np.arange(padded)
        keys[end:] = FAR
        program = self._step if len(tokens) == 1 else self._prompt
        found = program.run(
            {
                "input_ids": np.asarray([tokens], np.int64),
                "positions": np.arange(first, end),
                "keys": keys,
                **self._caches,
            }
        )
        self.tokens += tokens
        return found["logits"][0, -1]

    def _grow(self, length: int) -> None:
        """Make room for a number of tokens; rows that no token has written hold zeros."""
        if length <= self._room:
            return
        of = self.shape
        most = -(-of.context // PADDING) * PADDING
        room = min(max(FIRST_ROOM, -(-length // PADDING) * PADDING, self._room * 3 // 2 // PADDING * PADDING), most)
        held = len(self.tokens)
        for index in range(of.layers):
            for side in "kv":
                name = f"{side}_cache.{index}"
                wider = np.zeros((1, of.kv_heads, room, of.width), np.float32)
                if held:
                    wider[:, :, :held] = self._caches[name][:, :, :held]
                self._caches[name] = wider
        self._room = room


def check_tokens(of: DecoderShape, tokens: Sequence[int], held: int = 0) -> None:
    """Raise unless a decoder can take these tokens in after those that it holds."""
    if not tokens:
        raise OptionError("an empty prompt", hint="pass text or tokens that the model continues")
    odd = next((t for t in tokens if not 0 <= t < of.vocabulary), None)
    if odd is not None:
        raise OptionError(f"the token {odd}", hint=f"tokens are from 0 to {of.vocabulary - 1}")
    if held + len(tokens) > of.context:
        raise OptionError(
            f"{held + len(tokens):,} tokens, and the model has {of.context:,} positions", hint="shorten the prompt"
        )


__all__ = ["Session", "check_tokens"]

"""A language model from a file: compile once, then continue prompts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from dovetail.errors import OptionError
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import Field, read_gguf
from dovetail.ir.literal import Array
from dovetail.language.sampling import Sampler, Sampling
from dovetail.language.session import Session, check_tokens
from dovetail.language.tokenizer import Stream, Tokenizer
from dovetail.models.decoder import cached_decoder
from dovetail.models.decoder_shape import DecoderShape
from dovetail.runtime.compile import compile
from dovetail.runtime.program import Program


class LanguageModel:
    """A decoder in a GGUF file. Weights stay in the file's blocks; nothing spells them out.

    A session keeps the tokens of the last prompt: a prompt that begins with them reads only the rest.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """`options` are those of `dovetail.compile`."""
        file = read_gguf(path)
        found = read_decoder(file)
        self.fields: Mapping[str, Field] = file.fields
        self.shape: DecoderShape = found.shape
        self.prompt: Program = compile(cached_decoder(found.shape, found.kinds, seq="s"), **options)
        self.prompt.bind(found.params)
        self.step: Program = compile(cached_decoder(found.shape, found.kinds), **options)
        self.step.bind(found.params)
        self._session = self.session()
        self._lock = threading.Lock()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the file brings."""
        return Tokenizer(self.fields)

    def session(self) -> Session:
        """An empty KV cache for one sequence."""
        return Session(self.shape, self.prompt, self.step)

    def tokens(
        self, prompt: str | Sequence[int], *, most: int = 128, sampling: Sampling | None = None
    ) -> Iterator[int]:
        """Tokens that follow a prompt, up to `most` or the model's own end."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if most < 0:
            raise OptionError(f"{most} tokens", hint="ask for 0 or more")
        check_tokens(self.shape, ids)
        return self._generated(ids, most, Sampler(sampling or Sampling()))

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        most: int = 128,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Text that follows a prompt, piece by piece; it ends before the first of the `stop` strings."""
        stream, held = Stream(self.tokenizer), ""
        for token in self.tokens(prompt, most=most, sampling=sampling):
            held += stream.add(token)
            cut = min([at for s in stop if s and (at := held.find(s)) >= 0], default=-1)
            if cut >= 0:
                if cut:
                    yield held[:cut]
                return
            safe = len(held) - max([_overlap(held, s) for s in stop], default=0)
            if safe:
                yield held[:safe]
                held = held[safe:]
        held += stream.end()
        if held:
            yield held

    def _generated(self, ids: list[int], most: int, sampler: Sampler) -> Iterator[int]:
        ends, before = self._ends(), list(ids)
        while len(before) - len(ids) < most and len(before) <= self.shape.context:
            token = sampler.next(self._logits(before), before)
            if token in ends:
                return
            yield token
            before.append(token)

    def _logits(self, tokens: list[int]) -> Array:
        """Logits after tokens. Texts that are generated in turns share the cache: each reads what another replaced."""
        with self._lock:
            session = self._session
            kept = _common(session.tokens, tokens[:-1])
            session.trim(kept)
            return session.extend(tokens[kept:])

    def _ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        names = ("eos", "eot", "eom")
        found = [self.fields.get(f"tokenizer.ggml.{name}_token_id") for name in names]
        return frozenset([token for token in found if isinstance(token, int)])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    if one == other[: len(one)]:
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


__all__ = ["LanguageModel"]

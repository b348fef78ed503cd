"""A language model from a file: compile once, then continue prompts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

import numpy as np

from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends.gguf.file import Field
from dovetail.ir.literal import Array
from dovetail.language.generation import Piece, Request, Writer, is_count, log_sum
from dovetail.language.json_schema import Schema, Vocabulary
from dovetail.language.look_up import draft
from dovetail.language.programs import Programs
from dovetail.language.sampling import Sampling
from dovetail.language.session import Session
from dovetail.language.slots import check_tokens, common
from dovetail.language.source import open_source
from dovetail.language.templates import ChatTemplate, Message
from dovetail.language.tokenizer import Tokenizer
from dovetail.models.decoder_shape import DecoderShape
from dovetail.models.kv_cache import CacheKind
from dovetail.renamed import old_options
from dovetail.runtime.options import RequestOptions
from dovetail.runtime.program import Program
from dovetail.runtime.request import check_options


class LanguageModel:
    """A decoder in a GGUF file, or in a folder with safetensors. Weights stay as they are stored.

    A session keeps the tokens of the last prompt: a prompt that begins with them reads only the rest.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        kv_cache: CacheKind | None = None,
        adapter: str | os.PathLike[str] | None = None,
        adapter_scale: float = 1.0,
        **options: Unpack[RequestOptions],
    ) -> None:
        """`kv_cache` is f32, f16 or q8; `options` are those of `dovetail.compile`. Without it the cache is f32,
        and f16 with `precision="fast"` on a CPU.

        `adapter` is a GGUF file with a LoRA adapter, whose updates are taken `adapter_scale` times.
        `context` bounds the positions. Models with factors for long contexts use them where it says more than their
        original context, which is the default.
        """
        check_options(LanguageModel.__init__, options)
        self.source = open_source(path, context, adapter, adapter_scale)
        found = self.source.decoder
        self.fields: Mapping[str, Field] = self.source.fields
        self.shape: DecoderShape = found.shape
        self.programs = Programs(found, kv_cache, **options)
        self.prompt = self.programs.prompt
        self._session = self.session()
        self._lock = threading.Lock()

    @property
    def step(self) -> Program:
        """The program of one token, compiled or loaded when the second token is wanted."""
        return self.programs.step

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the file brings."""
        return self.source.tokenizer()

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template that the file brings."""
        if self.source.template is None:
            raise UnsupportedError("a model without a chat template", hint="build the prompt by hand")
        return ChatTemplate(self.source.template)

    def chat_prompt(self, messages: Sequence[Message], **more: Any) -> str:
        """The prompt of a conversation, by the file's chat template; it ends where the model answers.

        Names of special tokens in it mean these tokens: encode it with `special=True`. `more` goes to the template.
        """
        tokenizer = self.tokenizer
        names = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
        said = {name: "" if token is None else tokenizer.tokens[token] for name, token in names.items()}
        return self.template.render(messages, {**said, **more})

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bytes of every token."""
        return Vocabulary([self.tokenizer.bytes_of(i) for i in range(len(self.tokenizer.tokens))])

    def session(self) -> Session:
        """An empty KV cache for one sequence."""
        return Session(self.programs)

    @old_options(most="max_tokens")
    def tokens(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        sampling: Sampling | None = None,
        speculate: int = 0,
    ) -> Iterator[int]:
        """Tokens that follow a prompt, up to `max_tokens` or the model's own end."""
        writer = self._writer(prompt, Request(max_tokens, sampling or Sampling()), with_text=False)
        return (piece.token for piece in self._written(writer, speculate) if piece.token is not None)

    @old_options(most="max_tokens")
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] | None = (),
        schema: Schema | None = None,
        speculate: int = 0,
    ) -> Iterator[str]:
        """Text that follows a prompt, piece by piece, up to `max_tokens`; it ends before the first `stop` string.

        With a JSON `schema` the text satisfies it. `speculate` guesses up to so many tokens from the text before, and
        checks them in one run; it changes no token.
        """
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        asked = Request(max_tokens, sampling or Sampling(), tuple([s for s in stops if s != ""]), schema=schema)
        return (piece.text for piece in self.pieces(prompt, asked, speculate=speculate) if piece.text)

    def pieces(self, prompt: str | Sequence[int], asked: Request, *, speculate: int = 0) -> Iterator[Piece]:
        """The pieces of a text: tokens with their text, and their log-probabilities if asked for."""
        return self._written(self.writer(prompt, asked), speculate)

    def writer(self, prompt: str | Sequence[int], asked: Request) -> Writer:
        """A text that is still to be generated."""
        return self._writer(prompt, asked, with_text=True)

    def embed(self, text: str | Sequence[int]) -> Array:
        """The mean of the last layer's states over a text, of length 1."""
        ids = self._ids(text)
        with self._lock, np.errstate(invalid="ignore"):
            mean = self._session.states(ids).mean(axis=0, dtype=np.float64)
        if not np.isfinite(mean).all():
            raise LoadError("states that are no numbers", hint="a weight or a scale of the file is not finite")
        return (mean / max(float(np.linalg.norm(mean)), 1e-30)).astype(np.float32)

    def log_likelihoods(self, text: str | Sequence[int]) -> Array:
        """The log-probability of each token of a text but the first, after those before it."""
        ids = self._ids(text)
        found: list[float] = []
        for start, rows in self._rows(ids):
            found += [float(row[t]) - log_sum(row) for row, t in zip(rows, ids[start + 1 :], strict=False)]
        return np.asarray(found)

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        # A tokenizer that starts every text with a token of its own would make one of an empty prompt, too.
        ids = prompt if not isinstance(prompt, str) else self.tokenizer.encode(prompt) if prompt else []
        check_tokens(self.shape, ids)
        return [*ids]

    def _writer(self, prompt: str | Sequence[int], asked: Request, *, with_text: bool) -> Writer:
        most = max(asked.sampling.bias, default=0)
        if most >= self.shape.vocabulary:
            raise OptionError(f"a bias of the token {most}", hint=f"tokens are from 0 to {self.shape.vocabulary - 1}")
        return Writer(
            self._ids(prompt),
            asked,
            ends=self.ends,
            context=self.shape.context,
            tokenizer=self.tokenizer if with_text else None,
            vocabulary=None if asked.schema is None else self.vocabulary,
        )

    def _written(self, writer: Writer, speculate: int) -> Iterator[Piece]:
        if not is_count(speculate) or speculate > _MOST_DRAFTED:
            raise OptionError(f"speculation on {speculate!r:.40} tokens", hint=f"0 to {_MOST_DRAFTED}")
        yield from writer.begun()
        if writer.asked.scores_prompt:
            for start, rows in self._rows(list(writer.tokens)):
                yield from writer.scored(start, rows)
        while not writer.end:
            before = list(writer.tokens)
            guessed = draft(before, min(speculate, writer.left - 1, self.shape.context - len(before)))
            if writer.takes_likeliest and not guessed:
                rows = [self._likeliest(before)]
            else:
                rows = self._logits([*before, *guessed], 1 + len(guessed))
            for row, guess in zip(rows, [*guessed, None], strict=True):
                piece = writer.take(row)
                yield piece
                if writer.end or piece.token != guess:
                    break

    def _rows(self, tokens: list[int]) -> Iterator[tuple[int, Array]]:
        """Logits after each token but the last, some at a time, with the place of the first."""
        for start in range(0, len(tokens) - 1, _ROWS):
            end = min(start + _ROWS, len(tokens) - 1)
            yield start, self._logits(tokens[:end], end - start)

    def _likeliest(self, tokens: list[int]) -> Array | int:
        """The likeliest token after others, where the program chooses it, and else the logits after them."""
        with self._lock:
            rest = self._kept(tokens, 1)
            if self._session.chooses and len(rest) == 1:
                return self._session.likeliest(rest[0])
            return self._session.extend(rest)

    def _logits(self, tokens: list[int], wanted: int) -> Array:
        """Logits after the last tokens, as many as are `wanted`."""
        with self._lock:
            return self._session.extend_all(self._kept(tokens, wanted), wanted)

    def _kept(self, tokens: list[int], wanted: int) -> list[int]:
        """Forget what the session holds after a common beginning with these tokens; those that it has to take in.

        Texts that are generated in turns share the cache: each reads what another replaced.
        """
        kept = common(self._session.tokens, tokens[: len(tokens) - wanted])
        self._session.trim(kept)
        return tokens[kept:]

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text or a turn."""
        return frozenset([token for token in self.source.ends() if 0 <= token < self.shape.vocabulary])


_ROWS = 128
"""Tokens whose logits are held at once."""
_MOST_DRAFTED = 16


__all__ = ["LanguageModel"]

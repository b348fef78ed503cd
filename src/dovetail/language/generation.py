"""A text while it is generated: the next token from logits, text that is safe to hand on, and where it ends."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, SupportsIndex, cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.literal import Array
from dovetail.language.grammar import Grammar
from dovetail.language.json_schema import Matcher, Vocabulary, grammar_of
from dovetail.language.sampling import Sampler, Sampling, check_finite, not_finite
from dovetail.language.tokenizer import Stream, Tokenizer
from dovetail.models.decoder import NO_TOKEN

End = Literal["", "stop", "length"]
"""Why a text ends: by itself or at a stop string, or because it is as long as it may be."""
MOST_LOGPROBS = 20
MOST_STOPS, LONGEST_STOP = 16, 1024


@dataclass(frozen=True, slots=True)
class Request:
    """What is generated after a prompt."""

    most: int = 128
    """Tokens at most."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    logprobs: int | None = None
    """For how many of the likeliest tokens log-probabilities are given, besides the chosen one's; None for none."""
    schema: Mapping[str, Any] | bool | Grammar | None = None
    """A JSON schema that the text satisfies, or its grammar."""
    scores_prompt: bool = False
    """Whether pieces of the prompt's tokens come first, without text, each with its log-probability but the first."""

    def __post_init__(self) -> None:
        if not is_count(self.most):
            raise OptionError(f"{self.most!r:.40} tokens", hint="ask for 0 or more")
        if self.logprobs is not None and not (is_count(self.logprobs) and self.logprobs <= MOST_LOGPROBS):
            raise OptionError(f"log-probabilities of {self.logprobs!r:.40}", hint=f"ask for 0 to {MOST_LOGPROBS}")
        if self.scores_prompt and self.logprobs is None:
            raise OptionError(
                "scores of a prompt without logprobs", hint="ask for log-probabilities of 0 tokens or more"
            )
        if not _are_texts(self.stop):
            raise OptionError(f"stop strings that are {self.stop!r:.40}", hint="pass a tuple of texts")
        if len(self.stop) > MOST_STOPS or any(not s or len(s) > LONGEST_STOP for s in self.stop):
            raise OptionError(
                f"{len(self.stop)} stop strings", hint=f"up to {MOST_STOPS}, of 1 to {LONGEST_STOP} characters"
            )


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to a text."""

    token: int | None
    """None where the text ends with what was held back, and no token is added."""
    text: str
    """Whole characters that no stop string can begin with."""
    end: End = ""
    logprob: float | None = None
    """Of the token, before temperature, penalties and limits."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their log-probabilities."""


class Writer:
    """One text while it is generated: it takes logits, and gives a piece for each."""

    def __init__(
        self,
        prompt: Sequence[int],
        asked: Request,
        *,
        ends: frozenset[int] = frozenset(),
        context: int,
        tokenizer: Tokenizer | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        """Without a tokenizer pieces have no text; a schema needs the vocabulary's bytes."""
        self.tokens = list(prompt)
        """The prompt, and what was generated after it."""
        self.asked = asked
        self.end: End = "length" if asked.most == 0 and not asked.scores_prompt else ""
        self._prompt, self._ends, self._context = len(prompt), ends, context
        self._sampler = Sampler(asked.sampling)
        self._stream = None if tokenizer is None else Stream(tokenizer)
        self._held = ""
        self._vocabulary = vocabulary
        self._matcher: Matcher | None = None
        if asked.schema is not None:
            if vocabulary is None:
                raise OptionError("a schema without a tokenizer", hint="a schema constrains text; pass text")
            schema = asked.schema
            self._matcher = Matcher(schema if isinstance(schema, Grammar) else grammar_of(schema))

    @property
    def written(self) -> int:
        """Tokens that were generated."""
        return len(self.tokens) - self._prompt

    @property
    def left(self) -> int:
        """Tokens that may follow."""
        return min(self.asked.most - self.written, self._context + 1 - len(self.tokens))

    def begun(self) -> list[Piece]:
        """What is known before the model runs: that nothing follows, or the first token of a prompt with scores."""
        if self.end:
            return [Piece(None, "", self.end)]
        return [Piece(self.tokens[0], "")] if self.asked.scores_prompt else []

    def scored(self, start: int, logits: Array) -> list[Piece]:
        """The pieces of the prompt's tokens after the one at `start`, by the logits after those before them."""
        following = self.tokens[start + 1 : self._prompt]
        return [
            Piece(token, "", "", *self._logprobs(row, token)) for row, token in zip(logits, following, strict=False)
        ]

    @property
    def takes_likeliest(self) -> bool:
        """Whether the likeliest token always follows, so that `take` needs no logits."""
        return self.asked.sampling.takes_likeliest and self.asked.logprobs is None and self._matcher is None

    def take(self, found: Array | int) -> Piece:
        """The piece of the token that follows: chosen from the logits after the last one, or the likeliest of them."""
        assert not self.end, "the text has ended"
        if self.left <= 0:
            self.end = "length"
            return Piece(None, "", self.end)
        token = found if isinstance(found, int) else self._choose(found)
        if token == NO_TOKEN:
            raise not_finite()
        if token in self._ends:
            self.end = "stop"
            return Piece(None, self._rest(), self.end)
        self.tokens.append(token)
        logprob, top = (None, ()) if isinstance(found, int) else self._logprobs(found, token)
        text = self._safe("" if self._stream is None else self._stream.add(token))
        if self._matcher is not None and self._vocabulary is not None:
            self._matcher.advance(self._vocabulary.bytes_of(token))
            if not self.end and self._matcher.is_over:
                self.end = "stop"
        if not self.end and self.left <= 0:
            self.end = "length"
        if self.end and not self._is_cut:
            text += self._rest()
        return Piece(token, text, self.end, logprob, top)

    _is_cut = False
    """Whether a stop string ended the text: then nothing that was held back follows."""

    def _choose(self, logits: Array) -> int:
        matcher, vocabulary = self._matcher, self._vocabulary
        before = self.tokens
        if matcher is None or vocabulary is None:
            return self._sampler.next(logits, before, prompt=self._prompt)

        def allowed(token: int) -> bool:
            if token in self._ends:
                return matcher.is_complete
            return matcher.accepts(vocabulary.bytes_of(token))

        def mask() -> Array:
            found = vocabulary.allowed(matcher, logits.size)
            for end in self._ends:
                found[end] = matcher.is_complete
            return found

        return self._sampler.next(logits, before, allowed, mask, prompt=self._prompt)

    def _safe(self, text: str) -> str:
        """What can be handed on, once `text` is added; it ends before a stop string."""
        held, stop = self._held + text, self.asked.stop
        cut = min([at for s in stop if (at := held.find(s)) >= 0], default=-1)
        if cut >= 0:
            self.end, self._is_cut, self._held = "stop", True, ""
            return held[:cut]
        safe = len(held) - max([_overlap(held, s) for s in stop], default=0)
        self._held = held[safe:]
        return held[:safe]

    def _rest(self) -> str:
        """What was held back, where no stop string came after all."""
        last = self._safe("" if self._stream is None else self._stream.end())
        held, self._held = self._held, ""
        return last + held

    def _logprobs(self, logits: Array, token: int) -> tuple[float | None, tuple[tuple[int, float], ...]]:
        count = self.asked.logprobs
        if count is None:
            return None, ()
        total = log_sum(logits)
        top = np.argpartition(-logits, min(count, logits.size - 1))[:count] if count else np.empty(0, np.int64)
        ordered = sorted([(int(t), float(logits[t]) - total) for t in top], key=lambda pair: (-pair[1], pair[0]))
        return float(logits[token]) - total, tuple(ordered)


def is_count(said: object) -> bool:
    """Whether something is a whole number, 0 or more."""
    return isinstance(said, SupportsIndex) and not isinstance(said, bool) and operator.index(said) >= 0


def _are_texts(said: object) -> bool:
    return isinstance(said, tuple | list) and all(isinstance(each, str) for each in cast(Sequence[object], said))


def log_sum(logits: Array) -> float:
    """log Σ exp of logits, in float64."""
    check_finite(logits)
    wide = logits.astype(np.float64)
    most = float(wide.max())
    return most + math.log(float(np.exp(wide - most).sum()))


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


__all__ = ["End", "Piece", "Request", "Writer", "is_count", "log_sum"]

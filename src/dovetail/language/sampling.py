"""The next token from logits: the likeliest one, or a draw. A seed gives the same draws on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.ir.literal import Array

_CANDIDATES = 4096
"""Tokens that are sorted for top-p: the others together hold next to nothing, or are sorted as well."""

_MOST = sys.float_info.max
_COLDEST = 1e-200
"""Logits divided by less overflow; at this one all weight is on the likeliest tokens already."""
_TRIED = 24
"""Tokens that are tried one by one before all tokens are compared with a constraint."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. A temperature of 0 takes the likeliest; 0 turns the other limits off."""

    temperature: float = 0.0
    top_k: int = 0
    """Only this many of the likeliest tokens."""
    top_p: float = 1.0
    """Only the likeliest tokens that together reach this probability."""
    min_p: float = 0.0
    """Only tokens with at least this share of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """What logits of tokens that came before are divided by, or multiplied with where they are negative."""
    seed: int = 0
    presence_penalty: float = 0.0
    """What logits of tokens that the text after the prompt has are lowered by."""
    frequency_penalty: float = 0.0
    """The same for each time that it has them."""
    bias: Mapping[int, float] = field(default_factory=dict[int, float])
    """What is added to the logits of some tokens."""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            found: object = getattr(self, name)
            if isinstance(found, bool | np.bool_) or not isinstance(found, kind):
                raise OptionError(f"{name} is {found!r:.40}", hint=_RANGES[name])
        bounds = {
            "temperature": 0.0 <= self.temperature <= _MOST,
            "top_k": self.top_k >= 0,
            "top_p": 0.0 < self.top_p <= 1.0,
            "min_p": 0.0 <= self.min_p <= 1.0,
            "repetition_penalty": 0.0 < self.repetition_penalty <= _MOST,
            "seed": 0 <= self.seed < 2**64,
            "presence_penalty": abs(self.presence_penalty) <= _MOST,
            "frequency_penalty": abs(self.frequency_penalty) <= _MOST,
            "bias": all(map(_is_bias, self.bias.items())),
        }
        for name, holds in bounds.items():
            if not holds:
                raise OptionError(f"{name} is {getattr(self, name)!r:.40}", hint=_RANGES[name])

    @property
    def takes_likeliest(self) -> bool:
        """Whether a token is the likeliest one of its logits alone, whatever came before it."""
        penalised = self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty
        return self.temperature == 0.0 and not penalised and not self.bias


_INTEGER = (int, np.integer)
_NUMBER = (*_INTEGER, float, np.floating)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "temperature": _NUMBER,
    "top_k": _INTEGER,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "seed": _INTEGER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "bias": (Mapping,),
}
_RANGES = {
    "temperature": "it is 0 or above",
    "top_k": "it is a count, and 0 for all tokens",
    "top_p": "it is above 0, and at most 1",
    "min_p": "it is from 0 to 1",
    "repetition_penalty": "it is above 0, and 1 for none",
    "seed": "it is an integer from 0 to 2**64 - 1",
    "presence_penalty": "it is finite, and 0 for none",
    "frequency_penalty": "it is finite, and 0 for none",
    "bias": "it has a finite number for each of some tokens",
}


def _is_bias(said: tuple[Any, Any]) -> bool:
    token, value = said
    if isinstance(token, bool) or not isinstance(token, int | np.integer) or token < 0:
        return False
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= _MOST


class Sampler:
    """Draws the tokens of one sequence."""

    def __init__(self, of: Sampling) -> None:
        self.of = of
        # A counter-based generator: its bits depend on the seed and the number of draws alone.
        self._draws = np.random.Generator(np.random.Philox(key=of.seed))

    def next(
        self,
        logits: Array,
        before: Sequence[int],
        allowed: Callable[[int], bool] | None = None,
        mask: Callable[[], Array] | None = None,
        *,
        prompt: int = 0,
    ) -> int:
        """The next token after others, of which the first `prompt` are no part of the text that is drawn.

        With `allowed` it is one of those; `mask` gives all of them at once, and is called late.
        """
        check_finite(logits)
        logits = self._penalised(logits, before, prompt)
        token = self._drawn(logits)
        if allowed is None or mask is None or allowed(token):
            return token
        # Drawing again without the token that is not allowed draws from the allowed ones.
        logits = logits.copy()
        for _ in range(min(_TRIED, logits.size - 1)):
            logits[token] = -np.inf
            token = self._drawn(logits)
            if allowed(token):
                return token
        logits[~mask()] = -np.inf
        if logits.max() == -np.inf:
            raise UnsupportedError(
                "no token of the vocabulary continues a text of this schema", hint="use a model whose tokens are bytes"
            )
        return self._drawn(logits)

    def _penalised(self, logits: Array, before: Sequence[int], prompt: int) -> Array:
        """The logits with penalties and the bias."""
        of = self.of
        repeats = of.repetition_penalty != 1.0 and len(before) > 0
        counts = bool(of.presence_penalty or of.frequency_penalty) and len(before) > prompt
        if not (repeats or counts or of.bias):
            return logits
        logits = logits.copy()
        if repeats:
            at = np.unique(np.asarray(before))
            logits[at] = _less_likely(logits[at], of.repetition_penalty)
        if counts:
            at, times = np.unique(np.asarray(before[prompt:]), return_counts=True)
            _add(logits, at, -float(of.presence_penalty) - float(of.frequency_penalty) * times)
        if of.bias:
            _add(logits, np.fromiter(of.bias, np.int64), np.fromiter(map(float, of.bias.values()), np.float64))
        return logits

    def _drawn(self, logits: Array) -> int:
        if self.of.temperature == 0.0:
            return int(logits.argmax())
        tokens, chances = self._candidates(logits)
        sums = np.cumsum(chances)
        # Rounding must not reach the end of the last token's share.
        at = min(self._draws.random() * sums[-1], np.nextafter(sums[-1], 0.0))
        return int(tokens[np.searchsorted(sums, at, side="right")])

    def _candidates(self, logits: Array) -> tuple[Array, Array]:
        """The tokens that may be drawn, likeliest first, and their probabilities, which need not sum to 1."""
        of = self.of
        count = min(of.top_k or logits.size, logits.size)
        tokens = _likeliest(logits, count if of.top_k else min(_CANDIDATES, logits.size))
        wide = logits.astype(np.float64) / max(of.temperature, _COLDEST)
        weights = np.exp(wide - wide[tokens[0]])
        chances = weights[tokens]
        if not of.top_k:
            # The tail counts: where the likeliest do not suffice, all tokens are sorted.
            enough = of.top_p < 1.0 and chances.sum() >= of.top_p * weights.sum()
            if not enough and tokens.size < logits.size:
                tokens = _likeliest(logits, logits.size)
                chances = weights[tokens]
        total = chances.sum() if of.top_k else weights.sum()
        if of.top_p < 1.0:
            kept = 1 + int(np.count_nonzero(np.cumsum(chances) < of.top_p * total))
            tokens, chances = tokens[:kept], chances[:kept]
        if of.min_p > 0.0:
            kept = int(np.count_nonzero(chances >= of.min_p * chances[0]))
            tokens, chances = tokens[:kept], chances[:kept]
        return tokens, chances


def check_finite(logits: Array) -> None:
    """Raise unless there is a likeliest token: weights that are no numbers, or overflow, leave none."""
    if not np.isfinite(logits.max()):
        raise not_finite()


def not_finite() -> LoadError:
    """The error of logits without a likeliest token."""
    return LoadError(
        "logits that are no numbers, or all -inf",
        hint="a weight or a scale of the file is not finite, or the model overflows",
    )


def _add(logits: Array, at: Array, what: Array) -> None:
    """Add numbers to some logits; what overflows is the largest number."""
    most = float(np.finfo(logits.dtype).max)
    with np.errstate(over="ignore"):
        logits[at] = np.clip(logits[at].astype(np.float64) + what, -most, most)


def _less_likely(logits: Array, penalty: float) -> Array:
    """Logits made less likely; what overflows is the largest number."""
    with np.errstate(all="ignore"):
        found = np.where(logits > 0, logits / penalty, logits * penalty)
    return np.nan_to_num(found, copy=False, nan=0.0)


def _likeliest(logits: Array, count: int) -> Array:
    """The tokens with the highest logits, highest first; of equal ones the lower token comes first."""
    if count < logits.size:
        least = np.partition(logits, logits.size - count)[logits.size - count]
        some = np.flatnonzero(logits >= least)
    else:
        some = np.arange(logits.size)
    return some[np.argsort(-logits[some], kind="stable")][:count]


__all__ = ["Sampler", "Sampling", "check_finite", "not_finite"]

"""SentencePiece vocabularies: neighbours are joined, the pair with the highest score first; the rest are bytes."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping, Sequence

from dovetail.errors import LoadError

_SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LONGEST = 4096
"""Characters of a text that are joined at once; a longer text is cut at spaces."""


class SentencePiece:
    """Tokens of text without special tokens."""

    adds_bos = True

    def __init__(self, tokens: Sequence[str], scores: Sequence[float], *, unknown: int | None, prefixes: bool) -> None:
        if len(scores) != len(tokens) or not all(math.isfinite(s) for s in scores):
            raise LoadError(f"{len(scores):,} scores of {len(tokens):,} tokens", hint="fetch the file again")
        self._at: Mapping[str, int] = {token: i for i, token in enumerate(tokens)}
        self._scores, self._unknown, self._prefixes = scores, unknown, prefixes
        named = {token: match for token in tokens if (match := _BYTE.fullmatch(token)) is not None}
        self._byte_of = {token: bytes([int(match[1], 16)]) for token, match in named.items()}
        self._token_of = {byte: self._at[token] for token, byte in self._byte_of.items()}
        if len(self._token_of) < 256 and unknown is None:
            raise LoadError("a vocabulary without tokens for bytes or for what is unknown", hint="fetch it again")

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """The tokens of a text; one that starts a text, or follows a special token, gets a space before it."""
        spaced = (" " + text if starts and self._prefixes else text).replace(" ", _SPACE)
        return [token for part in _parts(spaced) for token in self._joined(part)]

    def bytes_of(self, token: str) -> bytes:
        """The bytes that a token stands for."""
        found = self._byte_of.get(token)
        return token.replace(_SPACE, " ").encode("utf-8", "replace") if found is None else found

    def _joined(self, text: str) -> list[int]:
        """Join neighbours while any two of them are a token: the best score first, of equal ones the leftmost."""
        parts, after, before = list(text), list(range(1, len(text) + 1)), list(range(-1, len(text) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < len(parts):
                both = parts[left] + parts[right]
                token = self._at.get(both)
                if token is not None:
                    heapq.heappush(queue, (-self._scores[token], left, right, both))

        for left in range(len(parts) - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, both = heapq.heappop(queue)
            # One of the two was joined with another since.
            if after[left] != right or not parts[left] or parts[left] + parts[right] != both:
                continue
            parts[left], parts[right] = both, ""
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [token for part in parts if part for token in self._tokens(part)]

    def _tokens(self, part: str) -> list[int]:
        """The token of a part, or those of its bytes."""
        token = self._at.get(part)
        if token is not None:
            return [token]
        single = [bytes([b]) for b in part.encode("utf-8")]
        if all(b in self._token_of for b in single):
            return [self._token_of[b] for b in single]
        return [] if self._unknown is None else [self._unknown]


def _parts(text: str) -> list[str]:
    """A text in pieces that are quick to join, each from a space on where there is one."""
    found: list[str] = []
    while len(text) > LONGEST:
        # A run of spaces may be one token: cut after a character that is none.
        cut = max((m.end() - 1 for m in re.finditer(f"[^{_SPACE}]{_SPACE}", text[:LONGEST])), default=LONGEST)
        found.append(text[:cut])
        text = text[cut:]
    return [*found, text] if text else found


__all__ = ["SentencePiece"]

"""Special tokens in text: names that stand for one token, whatever is around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class SpecialTokens:
    """Finds the names of special tokens in text: at each place the longest."""

    def __init__(self, named: Mapping[str, int], stripping: frozenset[int] = frozenset()) -> None:
        """`stripping` are tokens that take the white space after them."""
        self._named, self._stripping = named, stripping
        by_first: dict[str, list[str]] = {}
        for name in sorted(named, key=len, reverse=True):
            by_first.setdefault(name[0], []).append(name)
        self._by_first = by_first
        self._firsts = re.compile("[" + re.escape("".join(by_first)) + "]") if by_first else None

    def cut(self, text: str) -> Iterator[str | int]:
        """The text between special tokens, and these tokens."""
        start = at = 0
        while self._firsts is not None and (match := self._firsts.search(text, at)) is not None:
            at = match.start()
            name = next((n for n in self._by_first[text[at]] if text.startswith(n, at)), None)
            if name is None:
                at += 1
                continue
            if at > start:
                yield text[start:at]
            token = self._named[name]
            yield token
            at += len(name)
            while token in self._stripping and at < len(text) and text[at].isspace():
                at += 1
            start = at
        if start < len(text):
            yield text[start:]


__all__ = ["SpecialTokens"]

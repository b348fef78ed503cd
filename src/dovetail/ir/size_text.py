"""Sizes as people write them: 4, s, 2*s+1, floordiv(s, 2)."""

from __future__ import annotations

import re
from functools import lru_cache

from dovetail.errors import GraphError
from dovetail.ir.dim import COMPOUND, MOST_TOKENS, Size, check_size, symbol, total

_MOST_SPELLED = 1024
"""Spellings that are remembered: the layers of a model have the same sizes."""
_TOKEN = re.compile(r"\s*(?:([0-9]+)|([A-Za-z_][A-Za-z0-9_]*)|([-+*(),]))")
_MARK = re.compile(r"[(),]")
_DEEPEST = 32
_PLAIN_DIGITS = 15
"""An integer of at most this many digits is a size, whatever else sizes are checked for."""


@lru_cache(maxsize=_MOST_SPELLED)
def parse_size(text: str, longest: int = MOST_TOKENS) -> Size:
    """Parse the size that `str` printed: integers, names, + - *, floordiv(a, b), max(a, b), min(a, b).

    `longest` is how many tokens it may have: what a plan computes from the sizes of a graph is longer than those.
    """
    tokens: list[str] = []
    at = 0
    text = text.strip()
    if len(text) <= _PLAIN_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or len(tokens) >= longest:
            raise _wrong(text)
        tokens.append(token.group().strip())
        at = token.end()
    reader = _SizeReader(tokens, text, longest)
    size = reader.sum()
    reader.finish()
    return size


def split_sizes(text: str) -> list[str]:
    """Return the parts of a list of sizes, at the commas that are in no parentheses."""
    if "(" not in text:
        return text.split(",") if text.strip() else []
    parts: list[str] = []
    start = depth = 0
    for mark in _MARK.finditer(text):
        depth += (mark.group() == "(") - (mark.group() == ")")
        if mark.group() == "," and depth == 0:
            parts.append(text[start : mark.start()])
            start = mark.end()
    return [*parts, text[start:]]


class _SizeReader:
    """Recursive descent over the tokens of one size; nesting and length are bounded."""

    def __init__(self, tokens: list[str], text: str, longest: int) -> None:
        self.tokens = tokens
        self.text = text
        self.longest = longest
        self.at = 0
        self.depth = 0

    def sum(self) -> Size:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _wrong(self.text)
        negative = self.take("-")
        terms: list[Size] = []
        while True:
            terms.append(-self.product() if negative else self.product())
            if self.peek() not in ("+", "-"):
                break
            negative = self.take("-") or not self.take("+")
        self.depth -= 1
        size = total(terms)
        check_size(size, self.longest)
        return size

    def product(self) -> Size:
        factors = [self.factor()]
        while self.take("*"):
            factors.append(self.factor())
        # Pair by pair: one by one would sort the growing product once per factor.
        while len(factors) > 1:
            pairs = zip(factors[::2], [*factors[1::2], 1], strict=False)
            factors = [left * right for left, right in pairs]
            for size in factors:
                check_size(size, self.longest)
        return factors[0]

    def factor(self) -> Size:
        token = self.peek()
        self.at += 1
        if token is None:
            raise _wrong(self.text)
        if token.isdigit():
            if len(token) > 20:
                raise _wrong(self.text)
            return int(token)
        if token in COMPOUND and self.take("("):
            left = self.sum()
            self.need(",")
            right = self.sum()
            self.need(")")
            return COMPOUND[token](left, right)
        if token == "(":
            inner = self.sum()
            self.need(")")
            return inner
        return symbol(token)

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, token: str) -> bool:
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def need(self, token: str) -> None:
        if not self.take(token):
            raise _wrong(self.text)

    def finish(self) -> None:
        if self.at != len(self.tokens):
            raise _wrong(self.text)


def _wrong(text: str) -> GraphError:
    return GraphError(f"{text[:80]!r} is not a size", hint="write sizes as 4, s, 2*s+1 or floordiv(s, 2)")

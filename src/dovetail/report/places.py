"""Places that differ in numbers only, as one: layers.0.attn and layers.1.attn are layers.*.attn."""

from __future__ import annotations

import re
from collections.abc import Iterable

NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])|(?<=_)\d+")
"""A number that counts something: a layer, a node. Digits inside a word are part of its name."""


def folded(places: Iterable[str]) -> list[str]:
    """The places, each once, with a star where they differ in a number; numbers that all have stay."""
    by_form: dict[str, list[list[str]]] = {}
    for place in dict.fromkeys(places):
        by_form.setdefault(form(place), []).append(NUMBER.findall(place))
    return [_filled(shape, numbers) for shape, numbers in by_form.items()]


def form(text: str) -> str:
    """Equal for texts that differ in numbers only."""
    return NUMBER.sub(_HOLE, text)


_HOLE = "\0"


def _filled(shape: str, numbers: list[list[str]]) -> str:
    same = iter([column[0] if len(set(column)) == 1 else "*" for column in zip(*numbers, strict=True)])
    first, *rest = shape.split(_HOLE)
    return first + "".join(next(same, _HOLE) + part for part in rest)


__all__ = ["NUMBER", "folded", "form"]

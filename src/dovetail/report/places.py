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
        by_form.setdefault(NUMBER.sub("*", place), []).append(NUMBER.findall(place))
    return [_filled(form, numbers) for form, numbers in by_form.items()]


def _filled(form: str, numbers: list[list[str]]) -> str:
    same = iter([column[0] if len(set(column)) == 1 else "*" for column in zip(*numbers, strict=True)])
    # A star that the place has itself is none of ours where there are no numbers.
    return "".join(next(same, "*") if part == "*" else part for part in re.split(r"(\*)", form))

"""Folds names that differ in numbers only: layers.0.attn and layers.1.attn become layers.*.attn."""

from __future__ import annotations

import re
from collections.abc import Iterable

NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])|(?<=_)\d+")
"""A number that counts something: a layer, a node. Digits inside a word are part of its name."""


def fold_names(names: Iterable[str]) -> list[str]:
    """The names, each once, with a star where they differ in a number; numbers that all have stay."""
    by_form: dict[str, list[list[str]]] = {}
    for name in dict.fromkeys(names):
        by_form.setdefault(without_numbers(name), []).append(NUMBER.findall(name))
    return [_filled(shape, numbers) for shape, numbers in by_form.items()]


def without_numbers(text: str) -> str:
    """Equal for texts that differ in numbers only."""
    return NUMBER.sub(_HOLE, text)


_HOLE = "\0"


def _filled(shape: str, numbers: list[list[str]]) -> str:
    same = iter([column[0] if len(set(column)) == 1 else "*" for column in zip(*numbers, strict=True)])
    first, *rest = shape.split(_HOLE)
    return first + "".join(next(same, _HOLE) + part for part in rest)


__all__ = ["NUMBER", "fold_names", "without_numbers"]

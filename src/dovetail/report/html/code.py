"""The code of kernels in the page: the text of each once, and which kernel runs it."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.dataclass import dataclass

MOST_TEXTS = 200
"""Further kernels have no code in the page, which would grow without end."""


@dataclass(frozen=True, slots=True)
class Code:
    """Texts, and for each kernel of the plan the number of its text; -1 where it has none."""

    language: str
    texts: tuple[str, ...]
    of: tuple[int, ...]


def code_of(language: str, texts: Iterable[str | None]) -> Code:
    """The texts of a plan's kernels, given for each step; equal texts are kept once."""
    known: dict[str, int] = {}
    of: list[int] = []
    for text in texts:
        if text is not None and len(known) < MOST_TEXTS:
            known.setdefault(text, len(known))
        of.append(-1 if text is None else known.get(text, -1))
    return Code(language, tuple(known), tuple(of))


__all__ = ["MOST_TEXTS", "Code", "code_of"]

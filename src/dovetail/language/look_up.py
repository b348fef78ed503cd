"""Speculation by prompt look-up: what followed the last tokens where they came before may follow again."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2
"""Tokens at the end of a text that are looked up."""
BACK = 4096
"""How far back."""


def draft(tokens: Sequence[int], most: int) -> list[int]:
    """Tokens that may follow, `most` at most: those after the last place where the text has its ending before."""
    if most < 1:
        return []
    start = max(0, len(tokens) - BACK)
    recent = tokens[start:]
    for size in range(min(LONGEST, len(recent) - 1), SHORTEST - 1, -1):
        ending = recent[-size:]
        for at in range(len(recent) - size - 1, -1, -1):
            if recent[at + size - 1] == ending[-1] and recent[at : at + size] == ending:
                return list(recent[at + size : at + size + most])
    return []


__all__ = ["draft"]

"""Covering arrays: few cases in which all combinations of values of any two (or three) parameters occur.

A full product runs each such combination many times over. What fails by one value, or by two that meet, fails here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

Case = tuple[int, ...]


def covering(*axes: Sequence[Any], strength: int = 2) -> list[tuple[Any, ...]]:
    """Cases in which every combination of values of `strength` axes occurs; greedy, and the same in every process."""
    every = list(product(*(range(len(axis)) for axis in axes)))
    missing = {met for case in every for met in _meetings(case, strength)}
    chosen: list[Case] = []
    while missing:
        best = max(every, key=lambda case: sum(met in missing for met in _meetings(case, strength)))
        missing.difference_update(_meetings(best, strength))
        chosen.append(best)
    return [tuple(axis[at] for axis, at in zip(axes, case, strict=True)) for case in sorted(chosen)]


def _meetings(case: Case, strength: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The combinations of values that meet in a case."""
    return combinations(enumerate(case), strength)

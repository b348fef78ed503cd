"""Memory that no run uses now, kept for the next one: fresh memory costs a fault for every page."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.ir.literal import Array

MOST = 32
"""Pieces that are kept: an arena and scratch for each of a few runs at once."""


class Spare:
    """Pieces of memory that were given back. A list of Python's is safe to push and pop from several threads."""

    def __init__(self) -> None:
        self._pieces: list[Array] = []

    def take(self, size: int, allocate: Callable[[int], Array]) -> Array:
        """At least `size` bytes, but not many times more; others that are met on the way stay for other sizes."""
        passed: list[Array] = []
        found: Array | None = None
        for _ in range(len(self._pieces)):
            try:
                piece = self._pieces.pop()
            except IndexError:  # another thread took the last one
                break
            if size <= piece.size <= 4 * size + 4096:
                found = piece
                break
            passed.append(piece)
        self._pieces += passed[: MOST // 2]
        return allocate(size) if found is None else found

    def give(self, piece: Array) -> None:
        """Keep a piece for the next run, unless there are many already."""
        if len(self._pieces) < MOST:
            self._pieces.append(piece)

"""Words of a frame while they are laid out: what kernels are given, and tables and records inside of a frame.

A word is an offset from a base. Some move from trip to trip of a loop; the loop is told which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from dovetail.ir.dim import Size, evaluate
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.spec import Job, Packed, Status

WORTH_SHARING = 16_384
"""Work of a chunk of tiles below which handing it to another thread costs more than it brings."""

NOTHING, ARENA, STATUS, FIRST = 0, 1, 2, 3
"""The bases that words are counted from; the tensors outside the arena come behind these."""
SELF, LOCAL = -1, -2
"""Bases of words that speak of the words themselves, and of memory that loops have for their bodies."""


@dataclass(slots=True, eq=False)
class Moving:
    """A base that moves: where it is in trips 0, 2, 4… of a loop, where in the others, and what each trip adds."""

    one: Place
    other: Place
    step: int = 0
    words: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The words that are counted from it, by number, and how far from it they are."""


Place: TypeAlias = tuple["int | Moving", int]
"""A base and an offset."""
Placing: TypeAlias = Callable[[Value | Packed | Status], Place]
"""Where what a kernel points to lies."""


@dataclass(frozen=True, slots=True)
class Inner:
    """The words that are no tensor's: counted from the words themselves, and from the memory of bodies."""

    selves: Array
    locals: Array
    bytes: int
    """What bodies need."""

    def settle(self, words: Array, local: int) -> None:
        """Let them point to these words and to memory at this address."""
        if self.selves.size:
            words[self.selves] += words.ctypes.data
            words[self.locals] += local


def pointed(job: Job, place: Placing) -> list[Place]:
    """Where the pointers of a job point, in their order."""
    return [place(job.points[name]) for name in job.kernel.pointers]


class Words:
    """The words so far."""

    def __init__(self, sizes: Mapping[str, int], threads: int) -> None:
        self.sizes = sizes
        self.threads = threads
        self.bases: list[int] = []
        self.offsets: list[int] = []
        self.scratch = 0
        self._selves: list[int] = []
        self._locals: list[int] = []
        self._bytes = 0

    def number(self, size: Size) -> int:
        return number(size, self.sizes)

    def add(self, places: Sequence[Place]) -> int:
        """More words; gives the number of the first."""
        first = len(self.offsets)
        for index, (base, offset) in enumerate(places, first):
            if isinstance(base, Moving):
                base.words.append((index, offset))
            # Whatever moves is set before it is read.
            while isinstance(base, Moving):
                base, start = base.one
                offset += start
            if base in (SELF, LOCAL):
                (self._selves if base == SELF else self._locals).append(index)
            self.bases.append(max(base, NOTHING))
            self.offsets.append(offset)
        return first

    def arguments(self, job: Job, places: Sequence[Place]) -> tuple[int, int, int]:
        """What a job is given, with these places for its pointers: its first word, tiles, and tiles of a chunk."""
        tiles = self.number(job.tiles)
        chunk = chunk_of(tiles, self.number(job.work), self.threads, keeps=job.keeps)
        self.scratch = max(self.scratch, self.number(job.scratch))
        return self.add([*places, *((NOTHING, self.number(size)) for size in job.sizes)]), tiles, chunk

    def reserve(self, size: int) -> Place:
        """Memory for a body, aligned as arenas are."""
        start = self._bytes
        self._bytes += -(-size // 64) * 64
        return LOCAL, start

    @property
    def inner(self) -> Inner:
        return Inner(np.array(self._selves, np.int64), np.array(self._locals, np.int64), self._bytes)


def chunk_of(tiles: int, work: int, threads: int, *, keeps: bool = False) -> int:
    """How many tiles are claimed at once: enough to be worth it, few enough that all threads end together.

    Tiles that go on with what their neighbours laid out are claimed in as few chunks as there are threads.
    """
    return max(1, -(-WORTH_SHARING // max(1, work)), -(-tiles // threads) if keeps else tiles // (8 * threads))


def number(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else evaluate(size, sizes)

"""Launch arguments while a frame is laid out: 64-bit words that kernels, tables and control records read.

A word is a base and an offset. Some bases move from trip to trip of a loop, whose record lists the words to update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.spec import Binding, Job, Packed, Status
from dovetail.plan.plan import Plan
from dovetail.targets.runtime.arrays.address import address
from dovetail.targets.runtime.arrays.memory import Memory

WORTH_SHARING = 16_384
"""Work of a chunk below which handing it to another thread costs more than it saves."""

ABSOLUTE, ARENA, STATUS, FIRST_OUTSIDE = 0, 1, 2, 3
"""Bases of words. Those of tensors outside the arena come after these."""
ARGUMENTS, LOCALS = -1, -2
"""Bases of words that point to other launch arguments, and to the workspace of loop bodies."""


@dataclass(slots=True, eq=False)
class LoopAddress:
    """A base that alternates or advances: its address in even trips of a loop, in odd trips, and the step of a trip."""

    even: Address
    odd: Address
    step: int = 0
    uses: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The words relative to it, by index, with their offsets."""


Address: TypeAlias = tuple["int | LoopAddress", int]
"""A base and an offset in bytes."""
Resolve: TypeAlias = Callable[[Binding], Address]
"""The address of what a pointer argument points to."""


@dataclass(frozen=True, slots=True)
class Relocations:
    """The words that are relative to the launch arguments and to the workspace of loop bodies."""

    to_arguments: Array
    to_locals: Array
    local_bytes: int
    """The workspace that loop bodies need."""

    def apply(self, args: Array, local: int) -> None:
        """Make the words absolute: the arguments are this array, the workspace is at this address."""
        if self.to_arguments.size:
            args[self.to_arguments] += args.ctypes.data
            args[self.to_locals] += local


class Resolver:
    """Resolves bindings of one plan: the error flag, packed weights, and tensors by their root and offset."""

    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        number: Callable[[Size], int],
        packed: Callable[[Packed], Array],
        arena: Address,
        elsewhere: Callable[[Value], Address | None],
    ) -> None:
        """`elsewhere` gives the address of a root that is neither in the arena nor in memory known at bind time."""
        self._plan, self._memory, self._number, self._packed = plan, memory, number, packed
        self._arena, self._elsewhere = arena, elsewhere

    def __call__(self, binding: Binding) -> Address:
        if isinstance(binding, Status):
            return STATUS, 0
        if isinstance(binding, Packed):
            return ABSOLUTE, address(self._packed(binding))
        alias = self._plan.locate(binding)
        base, start = self._root(alias.root)
        return base, start + self._number(alias.offset)

    def _root(self, root: Value) -> Address:
        elsewhere = self._elsewhere(root)
        if elsewhere is not None:
            return elsewhere
        slot = self._plan.slots.get(root)
        if slot is not None and slot.pool == "arena":
            base, start = self._arena
            return base, start + self._number(slot.offset)
        buffer, start = self._memory.place(root)
        return ABSOLUTE, address(buffer) + start


def pointers_of(job: Job, resolve: Resolve) -> list[Address]:
    """The addresses of a job's pointers, in their order."""
    return [resolve(job.bindings[name]) for name in job.kernel.pointers]


class LaunchArgs:
    """The launch arguments so far."""

    def __init__(self, sizes: Mapping[str, int], threads: int) -> None:
        self.sizes = sizes
        self.threads = threads
        self.bases: list[int] = []
        self.offsets: list[int] = []
        self.scratch = 0
        self._to_arguments: list[int] = []
        self._to_locals: list[int] = []
        self._local_bytes = 0

    def number(self, size: Size) -> int:
        return number(size, self.sizes)

    def add(self, words: Sequence[Address]) -> int:
        """Append words; gives the index of the first."""
        first = len(self.offsets)
        for index, (base, offset) in enumerate(words, first):
            if isinstance(base, LoopAddress):
                base.uses.append((index, offset))
            # The loop sets a moving word before anything reads it.
            while isinstance(base, LoopAddress):
                base, start = base.even
                offset += start
            if base in (ARGUMENTS, LOCALS):
                (self._to_arguments if base == ARGUMENTS else self._to_locals).append(index)
            self.bases.append(max(base, ABSOLUTE))
            self.offsets.append(offset)
        return first

    def launch(self, job: Job, pointers: Sequence[Address]) -> tuple[int, int, int]:
        """Append the arguments of a job; gives the index of the first, the tiles, and the tiles of a chunk."""
        launch = job.tiled
        tiles = self.number(launch.tiles)
        chunk = chunk_of(tiles, self.number(launch.work), self.threads, keeps=launch.keeps)
        self.scratch = max(self.scratch, self.number(job.scratch))
        return self.add([*pointers, *((ABSOLUTE, self.number(size)) for size in job.sizes)]), tiles, chunk

    def reserve(self, size: int) -> Address:
        """Workspace for a loop body, aligned like an arena."""
        start = self._local_bytes
        self._local_bytes += -(-size // 64) * 64
        return LOCALS, start

    @property
    def relocations(self) -> Relocations:
        words = (np.array(self._to_arguments, np.int64), np.array(self._to_locals, np.int64))
        return Relocations(*words, self._local_bytes)


def chunk_of(tiles: int, work: int, threads: int, *, keeps: bool = False) -> int:
    """The tiles of a chunk: enough to be worth handing out, few enough that all threads finish together.

    Tiles that reuse the workspace of their neighbours are handed out in one chunk for each thread.
    """
    return max(1, -(-WORTH_SHARING // max(1, work)), -(-tiles // threads) if keeps else tiles // (8 * threads))


def number(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else evaluate(size, sizes)

"""Frames: what the kernels of a section are given, for one set of sizes.

A section is a run of steps between which no new size becomes known. Its words are offsets from a few bases, which are
all that differs from run to run: the arena, the inputs, and tensors that are allocated alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dovetail.ir import leaf
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.job import Job, Packed, Status
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.address import address
from dovetail.targets.cpu.crew_text import KIND_COMPILED, KIND_HOST, STEP_WORDS
from dovetail.targets.reference.memory import Memory

WORTH_SHARING = 16_384
"""Work of a chunk of tiles below which handing it to another thread costs more than it brings."""

NOTHING, ARENA, STATUS, FIRST = 0, 1, 2, 3
"""The bases that words are counted from; the tensors outside the arena come behind these."""


_NOBODY: Mapping[Value, Value] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Section:
    """Steps that run without a new size becoming known, and the kernels of those that have one."""

    steps: tuple[Step, ...]
    jobs: tuple[Job | None, ...]
    entries: tuple[int, ...]


def sections(steps: Sequence[Step], jobs: Sequence[Job | None], entries: Sequence[int]) -> list[Section]:
    """The steps cut behind each one that finds a size while it runs."""
    found: list[Section] = []
    start = 0
    for index, step in enumerate(steps):
        if index + 1 == len(steps) or any(True for _ in fresh_symbols(step.value)):
            part = slice(start, index + 1)
            found.append(Section(tuple(steps[part]), tuple(jobs[part]), tuple(entries[part])))
            start = index + 1
    return found


@dataclass(frozen=True, slots=True)
class Frame:
    """The words of a section's kernels."""

    bases: Array
    """For each word the base that it is counted from."""
    offsets: Array
    table: Array
    """The steps; their arguments count from the first word, and 1 says that a step may set the status."""
    outside: tuple[Value, ...]
    """The roots outside the arena, in the order of their bases."""
    scratch: int

    def words(self, memory: Memory, status: Array) -> Array:
        """The words of one run; `status` is the word that kernels set to have the host look at a step again."""
        return self.counted_from(
            address(memory.pools["arena"]), address(status), [address(memory.place(root)[0]) for root in self.outside]
        )

    def counted_from(self, arena: int, status: int, outside: Sequence[int]) -> Array:
        """The words where the bases lie at these addresses."""
        return np.array([0, arena, status, *outside], np.int64)[self.bases] + self.offsets

    def rows(self, words: Array, status: Array) -> Array:
        """The table of steps whose arguments are these words."""
        table = self.table.copy()
        table[:, 1] = address(words) + 8 * table[:, 1]
        table[:, 5] *= address(status)
        return table


def make_frame(
    section: Section,
    plan: Plan,
    memory: Memory,
    packed: Callable[[Packed], Array],
    threads: int,
    apart: Mapping[Value, Value] = _NOBODY,
) -> Frame:
    """The frame of a section for the sizes that are known in `memory`.

    `apart` are roots that lie outside the arena for once, each with the root whose memory it lies in.
    """
    sizes = memory.sizes
    bases: list[int] = []
    offsets: list[int] = []
    outside: dict[Value, int] = {}
    table = np.zeros((len(section.steps), STEP_WORDS), np.int64)
    scratch = 0

    def place(point: Value | Packed | Status) -> tuple[int, int]:
        if isinstance(point, Status):
            return STATUS, 0
        if isinstance(point, Packed):
            return NOTHING, int(packed(point).ctypes.data)
        alias = plan.locate(point)
        offset = number(alias.offset, sizes)
        if alias.root in apart:
            return FIRST + outside.setdefault(apart[alias.root], len(outside)), offset
        slot = plan.slots.get(alias.root)
        if slot is not None and slot.pool == "arena":
            return ARENA, offset + number(slot.offset, sizes)
        if alias.root.op is leaf.INPUT or (slot is not None and slot.pool == "heap"):
            return FIRST + outside.setdefault(alias.root, len(outside)), offset
        buffer, start = memory.place(alias.root)
        return NOTHING, int(buffer.ctypes.data) + start + offset

    for row, (job, entry) in enumerate(zip(section.jobs, section.entries, strict=True)):
        if job is None:
            table[row, 4] = KIND_HOST
            continue
        tiles = number(job.tiles, sizes)
        chunk = chunk_of(tiles, number(job.work, sizes), threads, keeps=job.keeps)
        table[row] = [entry, len(offsets), tiles, chunk, KIND_COMPILED, job.is_checked]
        scratch = max(scratch, number(job.scratch, sizes))
        placed = [place(job.points[name]) for name in job.kernel.pointers]
        placed += [(NOTHING, number(size, sizes)) for size in job.sizes]
        bases += [base for base, _ in placed]
        offsets += [offset for _, offset in placed]
    return Frame(np.array(bases, np.int64), np.array(offsets, np.int64), table, tuple(outside), -(-scratch // 64) * 64)


def chunk_of(tiles: int, work: int, threads: int, *, keeps: bool = False) -> int:
    """How many tiles are claimed at once: enough to be worth it, few enough that all threads end together.

    Tiles that go on with what their neighbours laid out are claimed in as few chunks as there are threads.
    """
    return max(1, -(-WORTH_SHARING // max(1, work)), -(-tiles // threads) if keeps else tiles // (8 * threads))


def number(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else evaluate(size, sizes)

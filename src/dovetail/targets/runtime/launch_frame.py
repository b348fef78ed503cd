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
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.spec import Job, Packed, Status
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.address import address
from dovetail.targets.cpu.threads.pool_text import KIND_COMPILED, KIND_HOST, STEP_WORDS
from dovetail.targets.runtime.control.frame import Bound, Layout
from dovetail.targets.runtime.control.plan import Control, Inside
from dovetail.targets.runtime.launch_args import ARENA, FIRST, NOTHING, STATUS, Inner, Words, pointed
from dovetail.targets.runtime.memory import Memory

_NOBODY: Mapping[Value, Value] = MappingProxyType({})
_NO_BODIES: Mapping[Inside, Bound] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Section:
    """Steps that run without a new size becoming known, and the kernels of those that have one."""

    steps: tuple[Step, ...]
    jobs: tuple[Job | Control | None, ...]
    entries: tuple[tuple[int, ...], ...]
    """For each step where its code starts, and that of its forms."""


def sections(
    steps: Sequence[Step], jobs: Sequence[Job | Control | None], entries: Sequence[tuple[int, ...]]
) -> list[Section]:
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
    """Bytes that each thread has for itself."""
    threads: int
    inner: Inner

    @property
    def bytes(self) -> int:
        """What threads have for themselves, and bodies behind it."""
        return max(64, self.scratch * self.threads + self.inner.bytes)

    def words(self, memory: Memory, status: Array) -> Array:
        """The words of one run; `status` is the word that kernels set to have the host look at a step again."""
        return self.counted_from(
            address(memory.pools["arena"]), address(status), [address(memory.place(root)[0]) for root in self.outside]
        )

    def counted_from(self, arena: int, status: int, outside: Sequence[int]) -> Array:
        """The words where the bases lie at these addresses."""
        return np.array([0, arena, status, *outside], np.int64)[self.bases] + self.offsets

    def rows(self, words: Array, status: Array, scratch: Array) -> Array:
        """The table of steps whose arguments are these words, which get to know where they and the scratch lie."""
        self.inner.settle(words, address(scratch) + self.scratch * self.threads)
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
    bodies: Mapping[Inside, Bound] = _NO_BODIES,
) -> Frame:
    """The frame of a section for the sizes that are known in `memory`.

    `apart` are roots that lie outside the arena for once, each with the root whose memory it lies in.
    """
    words = Words(memory.sizes, threads)
    layout = Layout(words, bodies)
    outside: dict[Value, int] = {}
    table = np.zeros((len(section.steps), STEP_WORDS), np.int64)

    def place(point: Value | Packed | Status) -> tuple[int, int]:
        if isinstance(point, Status):
            return STATUS, 0
        if isinstance(point, Packed):
            return NOTHING, int(packed(point).ctypes.data)
        alias = plan.locate(point)
        offset = words.number(alias.offset)
        if alias.root in apart:
            return FIRST + outside.setdefault(apart[alias.root], len(outside)), offset
        slot = plan.slots.get(alias.root)
        if slot is not None and slot.pool == "arena":
            return ARENA, offset + words.number(slot.offset)
        if slot is not None and slot.donor is not None:
            return FIRST + outside.setdefault(slot.donor, len(outside)), offset
        if alias.root.op is leaf.INPUT or (slot is not None and slot.pool == "heap"):
            return FIRST + outside.setdefault(alias.root, len(outside)), offset
        buffer, start = memory.place(alias.root)
        return NOTHING, int(buffer.ctypes.data) + start + offset

    for row, (job, starts) in enumerate(zip(section.jobs, section.entries, strict=True)):
        if job is None:
            table[row, 4] = KIND_HOST
        elif isinstance(job, Control):
            kind, first = layout.control(job, place)
            table[row] = [0, first, 0, 0, kind, True]
        else:
            form, job = job.chosen(words.number)
            first, tiles, chunk = words.arguments(job, pointed(job, place))
            table[row] = [starts[form], first, tiles, chunk, KIND_COMPILED, job.is_checked]
    scratch = -(-words.scratch // 64) * 64
    bases, offsets = np.array(words.bases, np.int64), np.array(words.offsets, np.int64)
    return Frame(bases, offsets, table, tuple(outside), scratch, threads, words.inner)

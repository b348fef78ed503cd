"""Frames: the launch table and the launch arguments of a section, for one set of sizes.

A section is a run of steps in which no new size becomes known. Its launch arguments are offsets from a few bases, and
only the bases differ from run to run: the arena, the inputs, and tensors that are allocated alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Machine
from dovetail.ir import leaf
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.spec import Job, Packed
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.arrays.address import address
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.calls.launch_args import (
    ARENA,
    FIRST_OUTSIDE,
    Address,
    LaunchArgs,
    Relocations,
    Resolver,
    pointers_of,
)
from dovetail.targets.runtime.calls.launch_table import KIND_COMPILED, KIND_HOST, empty_table
from dovetail.targets.runtime.control.frame import BoundBody, ControlLayout
from dovetail.targets.runtime.control.plan import CompiledBody, Control


@dataclass(frozen=True, slots=True)
class Section:
    """Steps that run without a new size becoming known, and the kernels of those that have one."""

    steps: tuple[Step, ...]
    jobs: tuple[Job | Control | None, ...]
    entries: tuple[tuple[int, ...], ...]
    """For each step the address of its kernel, then those of its variants."""


def sections(
    steps: Sequence[Step], jobs: Sequence[Job | Control | None], entries: Sequence[tuple[int, ...]]
) -> list[Section]:
    """The steps split after each one that finds a size while it runs."""
    sections: list[Section] = []
    start = 0
    for index, step in enumerate(steps):
        if index + 1 == len(steps) or any(True for _ in fresh_symbols(step.value)):
            part = slice(start, index + 1)
            sections.append(Section(tuple(steps[part]), tuple(jobs[part]), tuple(entries[part])))
            start = index + 1
    return sections


@dataclass(frozen=True, slots=True)
class Frame:
    """The launch table and the launch arguments of a section, relative to their bases."""

    bases: Array
    """The base of each launch argument."""
    offsets: Array
    table: Array
    """The steps. `arguments` is an index of a launch argument, `status` is 1 for a step that may set the error flag."""
    outside: tuple[Value, ...]
    """The roots outside the arena, in the order of their bases."""
    scratch: int
    """Bytes of workspace for each thread."""
    threads: int
    relocations: Relocations

    @property
    def bytes(self) -> int:
        """The workspace of all threads and of loop bodies."""
        return max(64, self.scratch * self.threads + self.relocations.local_bytes)

    def launch_args(self, memory: Memory, status: Array) -> Array:
        """The launch arguments of one run; `status` is its error flag."""
        return self.relative_to(
            address(memory.pools["arena"]), address(status), [address(memory.place(root)[0]) for root in self.outside]
        )

    def relative_to(self, arena: int, status: int, outside: Sequence[int]) -> Array:
        """The launch arguments with the bases at these addresses."""
        return np.array([0, arena, status, *outside], np.int64)[self.bases] + self.offsets

    def rows(self, args: Array, status: Array, scratch: Array) -> Array:
        """Return the launch table with these launch arguments as absolute addresses."""
        self.relocations.apply(args, address(scratch) + self.scratch * self.threads)
        table = self.table.copy()
        table["arguments"] = address(args) + 8 * table["arguments"]
        table["status"] *= address(status)
        return table


def make_frame(
    section: Section,
    plan: Plan,
    memory: Memory,
    packed: Callable[[Packed], Array],
    threads: int,
    apart: Mapping[Value, Value],
    bodies: Mapping[CompiledBody, BoundBody],
    *,
    machine: Machine,
) -> Frame:
    """The frame of a section for the sizes that are known in `memory`.

    `apart` are roots that are outside the arena in this frame, each with the root whose memory holds it. `machine`
    chooses between variants.
    """
    args = LaunchArgs(memory.sizes, threads)
    layout = ControlLayout(args, bodies)
    outside: dict[Value, int] = {}
    table = empty_table(len(section.steps))

    def elsewhere(root: Value) -> Address | None:
        slot = plan.slots.get(root)
        if slot is not None and slot.donor is not None:
            root = slot.donor
        if root in apart or root.op is leaf.INPUT or (slot is not None and slot.pool == "heap"):
            return FIRST_OUTSIDE + outside.setdefault(apart.get(root, root), len(outside)), 0
        return None

    resolve = Resolver(plan, memory, args.number, packed, (ARENA, 0), elsewhere)
    for row, (job, starts) in enumerate(zip(section.jobs, section.entries, strict=True)):
        if job is None:
            table["kind"][row] = KIND_HOST
        elif isinstance(job, Control):
            kind, first = layout.control(job, resolve)
            table[row] = (0, first, 0, 0, kind, True)
        else:
            variant, job = job.chosen(args.number, machine)
            first, tiles, chunk = args.launch(job, pointers_of(job, resolve))
            table[row] = (starts[variant], first, tiles, chunk, KIND_COMPILED, job.is_checked)
    scratch = -(-args.scratch // 64) * 64
    bases, offsets = np.array(args.bases, np.int64), np.array(args.offsets, np.int64)
    return Frame(bases, offsets, table, tuple(outside), scratch, threads, args.relocations)

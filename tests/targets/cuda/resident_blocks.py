"""The blocks of a resident kernel on the machine in NumPy: parts of a grid, passes, and warps that copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from dovetail.kernels.loops.ir import AwaitPhase, GridBarrier, Statement, SubGrid, When
from dovetail.kernels.loops.persistent.kernel import NEXT
from dovetail.kernels.loops.persistent.stream import THREADS as STREAM_THREADS

if TYPE_CHECKING:
    from tests.targets.cuda.lockstep import Machine


def run_sub_grid(machine: Machine, statement: SubGrid) -> None:
    """The part of a block in work that few blocks share: it has indices, scalars and private memory of its own."""
    first = (machine.number - statement.first) % machine.grid
    for number in range(first, statement.blocks, machine.grid):
        own = _part_of(machine, statement, number)
        own.statements(statement.body, own.own.every)


def _part_of(machine: Machine, statement: SubGrid, number: int) -> Machine:
    own = copy(machine)
    own.resize(statement.threads)
    own.grid, own.number = statement.blocks, number
    given = {"pass", *(one.name for one in machine.kernel.cycles)}
    own.names, own.memo = {name: x for name, x in machine.names.items() if name in given}, {}
    return own


def run_resident(machine: Machine) -> None:
    """A kernel whose blocks all run at the same time: they come backwards, from one barrier of the grid to the next."""
    kernel = machine.kernel
    buffer, start = machine.buffers[kernel.counter]
    threads = machine.block - (STREAM_THREADS if kernel.stream else 0)
    count = buffer[start : start + 8].view(np.int64)
    machine.stamp = int(count[0]) + 1
    count += 1
    blocks: list[Machine] = []
    for number in range(machine.grid):
        one = copy(machine)
        one.buffers, one.groups, one.shared, one.number = dict(machine.buffers), [[]], machine.shared.copy(), number
        one.buffers |= {NEXT + name: machine.buffers[f"{name}.0"] for name in kernel.tabled}
        one.barriers = {}
        one.is_early = True
        one.statements(kernel.early, one.own.every)
        one.resize(threads)
        blocks.append(one)
        one.stream = _copying(one)
        next(one.stream, None)
    every = machine.expressions[threads].every
    for number in range(kernel.passes):
        for one in blocks:
            one.start_pass(number)
        part: list[Statement] = []
        for statement in kernel.body:
            part.append(statement)
            if isinstance(statement, GridBarrier):
                for one in reversed(blocks):
                    one.is_early = False
                    one.statements(part[:-1], every)
                    one.is_early = True
                    one.statements(statement.meanwhile, every)
                part.clear()
        assert not part, "a pass ends with a barrier"
    for one in blocks:
        assert next(one.stream, "done") == "done", "a warp that copies waits for ever"
        every_one = [barrier for several in one.barriers.values() for barrier in several]
        assert all(b.awaited == b.phase and b.missing == b.arrivals for b in every_one), "every phase is awaited"


def _copying(block: Machine) -> Iterator[None]:
    """All passes of the warp that copies, as early as its block lets it: it stops where it waits."""
    own = copy(block)
    own.resize(own.lanes)
    own.is_early, own.buffers = True, dict(block.buffers)
    for number in range(own.kernel.passes):
        own.start_pass(number)
        yield from _until_it_waits(own, own.kernel.stream)


def _until_it_waits(machine: Machine, body: Sequence[Statement]) -> Iterator[None]:
    mask = machine.own.every
    for s in body:
        machine.memo = {}
        if isinstance(s, AwaitPhase):
            found, left = machine.barrier(s.barrier, s.slot, mask), machine.same(s.phase, mask)
            while not found.has_left(left):
                yield
        elif isinstance(s, SubGrid):
            first = (machine.number - s.first) % machine.grid
            if first < s.blocks:
                yield from _until_it_waits(_part_of(machine, s, first), s.body)
        elif isinstance(s, When) and any(isinstance(x, SubGrid) for x in s.body):
            if machine.same(s.condition, mask):
                yield from _until_it_waits(machine, s.body)
        else:
            machine.statements((s,), mask)


__all__ = ["run_resident", "run_sub_grid"]

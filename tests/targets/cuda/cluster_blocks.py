"""The blocks of a cluster that copy to each other's shared memory, and roles of warps, on the machine in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import AllocBarriers, ClusterBarrier, Roles, Statement
from tests.targets.cuda.phases import Turns

if TYPE_CHECKING:
    from tests.targets.cuda.lockstep import Machine


def run_roles(blocks: Sequence[Machine], statement: Roles, mask: Array) -> None:
    """Both bodies of each block, in turns."""
    first = np.arange(len(mask)) < statement.warps * blocks[0].lanes
    turns = Turns(2 * len(blocks))

    def role(block: Machine, body: Sequence[Statement], threads: Array) -> Callable[[int], None]:
        def run(index: int) -> None:
            own = copy(block)
            own.turns, own.role, own.names, own.memo, own.groups, own.products = (
                turns, index, dict(block.names), {}, [[]], [],
            )  # fmt: skip
            own.statements(body, threads)

        return run

    bodies = ((statement.body, mask & first), (statement.other, mask & ~first))
    turns.run([role(block, *each) for block in blocks for each in bodies])


def run_cluster(machine: Machine, numbers: Sequence[int]) -> None:
    """Blocks with shared memory and barriers of their own, from one barrier of the cluster to the next.

    Until a block comes to such a barrier, the others may not have started: they have neither memory nor barriers.
    """
    kernel, every = machine.kernel, np.ones(machine.block, bool)
    blocks: list[Machine] = []
    for number in numbers:
        one = copy(machine)
        one.buffers, one.barriers, one.names, one.groups, one.products = dict(machine.buffers), {}, {}, [[]], []
        one.number, one.cluster = number, blocks
        blocks.append(one)
    part: list[tuple[bool, Statement]] = []
    have_barriers = False
    for is_early, statement in [*((True, s) for s in kernel.early), *((False, s) for s in kernel.body)]:
        have_barriers &= not (isinstance(statement, AllocBarriers) and statement.is_new)
        have_barriers |= isinstance(statement, ClusterBarrier)
        if not isinstance(statement, ClusterBarrier | Roles):
            part.append((is_early, statement))
            continue
        for one in reversed(blocks):
            for one.is_early, each in part:
                one.statements((each,), every)
            one.is_early = is_early
        part.clear()
        if isinstance(statement, Roles):
            assert have_barriers, "no block copies to others, or arrives there, before they have barriers"
            run_roles(blocks, statement, every)
    for one in blocks:
        left = [barrier for several in one.barriers.values() for barrier in several]
        ends = [b.awaited == b.phase and b.missing == b.arrivals and not b.copies for b in left]
        assert all(ends), "no block ends while others copy to it, or arrive at its barriers"


__all__ = ["run_cluster", "run_roles"]

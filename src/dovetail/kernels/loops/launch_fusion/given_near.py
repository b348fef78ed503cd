"""Constants of an epilogue, such as a bias, prefetched to shared memory: they are there when a block multiplies.

A block loaded them at its start, but the assembler moves such loads to where registers are free, after the wait for
rows. A block then waited for a bias once all else was done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.analysis import with_rooms
from dovetail.kernels.loops.ir import (
    Alloc,
    AwaitCopies,
    Barrier,
    Kernel,
    Load,
    Loop,
    Set,
    Statement,
    When,
    reads,
    sizes_in,
    uses,
)
from dovetail.kernels.loops.launch_fusion.composed import Renaming, copied_whole


@dataclass(frozen=True, slots=True)
class GivenLoads:
    """Where a block loads what its results need, and where all copies of it have arrived."""

    loop: Loop
    before: tuple[Statement, ...]
    """What comes before the products, and needs none of these loads."""
    given: tuple[Statement, ...]
    after: tuple[Statement, ...]

    @staticmethod
    def of(kernel: Kernel) -> GivenLoads | None:
        """None where blocks do anything but a tile, or wait for no copies."""
        loop = kernel.body[-1]
        if not kernel.early or not isinstance(loop, Loop) or loop.kind != "block":
            return None
        waits = [i for i, s in enumerate(loop.body) if s == AwaitCopies(0)]
        if not waits or not isinstance(loop.body[waits[-1] + 1], Barrier):
            return None
        end = waits[-1] + 2
        given = [i for i, s in enumerate(loop.body[:end]) if _is_given(s, loop.body[i + 1 : end])]
        before = tuple([s for i, s in enumerate(loop.body[:end]) if i not in given])
        return GivenLoads(loop, before, tuple([loop.body[i] for i in given]), loop.body[end:])

    @property
    def pointers(self) -> frozenset[str]:
        """What is loaded for results alone, there or where they are computed."""
        first = {tensor.pointer for tensor, _ in reads(self.before)}
        return frozenset([tensor.pointer for tensor, _ in reads((*self.given, *self.after))]) - first

    def near(self, kernel: Kernel, rooms: Mapping[str, Alloc]) -> Kernel:
        """The kernel with these constants in shared memory: they are copied with its first copies, and read there after
        the wait for all."""
        body = (*self.before, *self.given, *self.after)
        names = {name: name for name in kernel.pointers} | {name: room.pointer for name, room in rooms.items()}
        moved = Renaming(lambda n: n, names, frozenset([room.pointer for room in rooms.values()])).body(body)
        whole = (*rooms.values(), *kernel.body[:-1], replace(self.loop, body=moved))
        copies = [s for name, room in rooms.items() for s in copied_whole(name, room)]
        early = (*rooms.values(), *copies, *kernel.early)
        launch = kernel.launch and with_rooms(kernel.launch, whole)
        return replace(kernel, body=whole, early=early, sizes=sizes_in((*early, *whole)), launch=launch)


def _is_given(s: Statement, until: tuple[Statement, ...]) -> bool:
    """Whether a statement does nothing but load what no other one needs until then."""
    if not isinstance(s, When) or not all([isinstance(x, Set) and isinstance(x.value, Load) for x in s.body]):
        return False
    names = {x.name for x in s.body if isinstance(x, Set)}
    return not names & uses(until)


__all__ = ["GivenLoads"]

"""What the kernel after a resident one reads first, brought to the cache of the device while the last pass still runs.

Memory has little to do then: the warp that copies starts no copies of a next pass, and none of parts that the last pass
does not run. In their place it prefetches as many bytes of the weights that blocks of the next kernel copy first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Alloc,
    AllocBarriers,
    Call,
    CopyBulk,
    ExpectBytes,
    Extent,
    Kernel,
    Loop,
    Name,
    Prefetch,
    Set,
    Statement,
    SubGrid,
    ThreadIndex,
    When,
    add,
    walk,
)
from dovetail.kernels.loops.launch_fusion.composed import Renaming
from dovetail.kernels.loops.persistent.bodies import PASS
from dovetail.kernels.loops.persistent.passes import part_in, starts_late
from dovetail.kernels.loops.persistent.stream import IS_FIRST


@dataclass(frozen=True, slots=True)
class Next:
    """The bulk copies with which each block of a kernel starts, all of them of one size."""

    places: tuple[Set, ...]
    """What a block is at."""
    block: str
    """The name of its number."""
    loop: Loop
    copy: CopyBulk
    grid: int
    turns: int
    """Blocks of it that a multiprocessor runs at a time."""

    @property
    def pointer(self) -> str:
        return self.copy.source.pointer

    @property
    def count(self) -> int:
        """The copies of a block."""
        assert isinstance(self.loop.extent, Extent) and isinstance(self.loop.extent.size, int), "it was checked"
        return self.loop.extent.size

    def prefetched(self, pointer: str, first: int, stop: int, blocks: int) -> list[Statement]:
        """Some of the copies of as many blocks as run at a time, which another grid prefetches through a pointer."""
        found: list[Statement] = []
        for turn in range(first // self.count, -(-stop // self.count)):
            naming = Renaming(lambda n, own=f"_next_{first}_{turn}": n + own, {self.pointer: pointer})
            start, end = (min(max(at - turn * self.count, 0), self.count) for at in (first, stop))
            here = add(ThreadIndex("block"), Extent(turn * blocks))
            at = Set(self.loop.variable, add(Name("piece"), Extent(start)))
            fetch = Prefetch(self.copy.source, self.copy.source_at, Extent(self.copy.nbytes))
            loop = Loop("piece", Extent(end - start), (at, fetch), rolled=True)
            body = naming.body((Set(self.block, here), *self.places, loop))
            there = Call("less", (here, Extent(self.grid)), bool_)
            found.append(When(Call("bit_and", (IS_FIRST, there), bool_), body))
        return [SubGrid(blocks, LANES, 0, tuple(found), is_rare=True)]


def first_copies(kernel: Kernel) -> Next | None:
    """The copies with which blocks of a kernel start; None where they are not one loop of bulk copies."""
    launch = kernel.launch
    plain = [s for s in kernel.early if not isinstance(s, (Alloc, AllocBarriers)) and not _is_of_one_thread(s)]
    if launch is None or not isinstance(launch.grid, int) or not plain:
        return None
    *places, loop = plain
    sets = [s for s in places if isinstance(s, Set)]
    if len(sets) < len(places) or not isinstance(loop, Loop) or len(loop.body) != 1 or loop.kind != "thread":
        return None
    copy, blocks = loop.body[0], [s for s in sets if s.value == ThreadIndex("block")]
    if not isinstance(copy, CopyBulk) or len(blocks) != 1 or not isinstance(loop.extent, Extent):
        return None
    rest = tuple([s for s in sets if s is not blocks[0]])
    if not isinstance(loop.extent.size, int) or _has_threads((*rest, *copy.source_at)):
        return None
    return Next(rest, blocks[0].name, loop, copy, launch.grid, max(launch.resident, 1))


def with_next(
    stream: Sequence[Statement], found: Next, pointer: str, passes: int, blocks: int, most: int
) -> list[Statement]:
    """The copies of a kernel, with bytes of the next one in place of those that the last pass does not copy, at most so
    many."""
    made: list[Statement] = []
    size = found.copy.nbytes
    budget, done, most = 0, 0, min(most // (blocks * size), found.count * found.turns)
    skips = Call("less", (PASS, Extent(passes - 1)), bool_)
    for index, s in enumerate(stream):
        made.append(s)
        if isinstance(s, When) and s.condition == skips and part_in(s) is not None:
            budget += sum([x.count for x in everything([s]) if isinstance(x, ExpectBytes)])
        if any([starts_late(x) for x in stream[index + 1 : index + 2]]):
            continue  # what the last pass still needs comes first
        stop = min(done + budget // size, most)
        if stop > done:
            is_last = Call("equal", (PASS, Extent(passes - 1)), bool_)
            made.append(When(is_last, tuple(found.prefetched(pointer, done, stop, blocks))))
            budget, done = budget - (stop - done) * size, stop
    return made


def _is_of_one_thread(s: Statement) -> bool:
    """Whether one thread runs a statement: it tells a barrier the bytes of copies, or copies few, such as gains."""
    if isinstance(s, When):
        return all(_is_of_one_thread(x) for x in s.body)
    return isinstance(s, (CopyBulk, ExpectBytes))


def _has_threads(parts: Sequence[Any]) -> bool:
    """Whether statements or expressions differ between the threads of a block."""
    return any([isinstance(x, ThreadIndex) and x.kind != "block" for x in walk(parts)])


__all__ = ["Next", "first_copies", "with_next"]

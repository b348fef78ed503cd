"""The levels of a resident kernel: which blocks run its parts after which others, and when copies for them start."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import CommitCopies, CopyAsync
from dovetail.kernels.loops.resident_bodies import only_prefetches, segments_of
from dovetail.kernels.loops.resident_part import Part


class Levels:
    """Parts in levels. Layers repeat theirs in each pass; those of parts after all layers are in the last pass."""

    def __init__(self, parts: Sequence[Part], blocks: int, passes: int) -> None:
        self.parts, self.blocks, self.passes = parts, blocks, passes
        self.segments = [segments_of(part.kernel.body) for part in parts]
        self.runs = [part.passes or range(passes) for part in parts]
        """The passes that run each part."""
        self.levels: list[int] = []
        """The level of the first segment of each part; the others follow."""
        for number, part in enumerate(parts):
            first = max(map(self.last, range(number))) + 1 if self.is_after(number) else 0
            self.levels.append(max([first, *[self.last(i) + 1 for i in part.after]]))
        own = [n for n in range(len(parts)) if not self.is_after(n)]
        self.layers = max(map(self.last, own)) + 1
        """The levels of a layer; those of parts after all layers follow."""
        self.count = max(map(self.last, range(len(parts)))) + 1
        self.first = self._first_blocks()
        self.ahead = {i: 0 for i, part in enumerate(parts) if _is_ahead(part)}
        """The levels between the barrier where copies of a part start and its own, for those that copy ahead."""

    def is_after(self, part: int) -> bool:
        """Whether a part comes after all layers: the last pass alone runs it."""
        return self.runs[part].start > 0

    def last(self, part: int) -> int:
        """The level of the last segment of a part."""
        return self.levels[part] + len(self.segments[part]) - 1

    def _first_blocks(self) -> list[int]:
        """Parts of one level start with different blocks, which then run them at the same time."""
        ends: dict[int, int] = {}
        found: list[int] = []
        for number, part in enumerate(self.parts):
            first = ends.get(self.levels[number], 0)
            found.append(first)
            for level in range(self.levels[number], self.last(number) + 1):
                ends[level] = (first + part.blocks) % self.blocks
        return found

    def in_order(self) -> list[int]:
        """The parts that copy ahead, in the order in which copies start."""
        return sorted(self.ahead, key=lambda n: (self.barrier(n), self.levels[n]))

    def barrier(self, number: int) -> int:
        """The level before the barrier at which copies of a part start; below 0 in the pass before."""
        return self.levels[number] - 1 - self.ahead[number]

    def issued(self, level: int) -> list[int]:
        """The parts whose copies start at the barrier after a level, in the order in which they are needed."""
        return sorted([n for n in self.ahead if self.issue(n)[1] == level], key=lambda n: self.issue(n)[2:])

    def issue(self, number: int, of: int = 0) -> tuple[int, int, bool, int]:
        """When the copies of a part for a pass start, in the order of the kernel: the pass, the level before the
        barrier, whether they are those of the next pass, and the level of the part."""
        at = self.barrier(number)
        is_next = at < 0
        return of - is_next, at + self.layers * is_next, is_next, self.levels[number]

    def later(self, number: int) -> int:
        """Groups of copies that start after those of a part, and before it awaits them."""
        own, end = self.issue(number), (0, self.levels[number])
        others = [self.issue(other, of) for other in self.ahead for of in (-1, 0, 1)]
        return sum([own < at and at[:2] < end for at in others])

    def awaited(self) -> set[int]:
        """The levels of a pass after which blocks wait for each other."""
        found = {self.levels[n] - 1 for n, part in enumerate(self.parts) if part.waits}
        for number, part in enumerate(self.parts):
            inside = range(self.levels[number], self.last(number))
            found |= set() if {*part.kernel.exchanged} & {*part.sent} else {*inside}
        return found

    def is_ordered(self) -> bool:
        """Whether copies that are needed earlier start no later: they arrive in order."""
        by_level = sorted(self.ahead, key=self.levels.__getitem__)
        starts = [self.barrier(n) for n in by_level]
        layers = [self.barrier(n) for n in by_level if not self.is_after(n)]
        after = [self.barrier(n) for n in by_level if self.is_after(n)]
        ends = not layers or layers[-1] <= layers[0] + self.layers
        return starts == sorted(starts) and ends and min(after, default=0) >= 0


def _is_ahead(part: Part) -> bool:
    """Whether all copies of a part are its early ones, so that they may start any time before."""
    later = any(isinstance(s, (CommitCopies, CopyAsync)) for s in everything(part.kernel.body))
    return bool(part.kernel.early) and not later and not only_prefetches(part.kernel.early)


__all__ = ["Levels"]

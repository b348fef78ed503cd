"""Kernels that follow each other as one kernel whose blocks stay: a barrier of the grid is where a launch was.

Parts that do not wait for each other share a level; a barrier of the grid ends each level. The weights of a part are
copied to shared memory levels before it runs, as long as there is room, so that memory is read while blocks wait. The
whole sequence runs in several passes, such as the layers of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.kernels.loops.analysis import BARRIER_BYTES, everything, shared_bytes
from dovetail.kernels.loops.ir import (
    Alloc,
    AllocBarriers,
    AwaitCopies,
    Barrier,
    CommitCopies,
    CopyAsync,
    FenceShared,
    GridBarrier,
    Kernel,
    KernelKind,
    Launch,
    Receive,
    Statement,
    SubGrid,
    When,
    reads,
    sizes_in,
)
from dovetail.kernels.loops.launch_fusion.composed import Renaming, copied_whole
from dovetail.kernels.loops.persistent import stream as copy_stream
from dovetail.kernels.loops.persistent.bodies import (
    awaiting,
    has_bulk,
    in_phase,
    only_prefetches,
    segments_of,
    without,
    without_last_barrier,
)
from dovetail.kernels.loops.persistent.own import owned, read
from dovetail.kernels.loops.persistent.part import Part
from dovetail.kernels.loops.persistent.passes import IN_FIRST, in_passes, part_in, with_part
from dovetail.kernels.loops.persistent.stream import Free
from dovetail.kernels.loops.persistent.words import PartWords, Words

__all__ = ["NEXT", "Levels", "Room", "copies", "offsets", "persistent_kernel"]


_FEW_BYTES = 48 << 10
"""Weights of a block below which all blocks end a level at almost the same time."""


@dataclass(frozen=True, slots=True)
class Room:
    """Shared memory that some slots of a pass need: slot 2b is level b, and 2b + 1 the barrier after it."""

    alloc: Alloc
    slots: frozenset[int]
    """Of a pass that others follow, with the same numbers in the next one; none for what comes after all layers."""
    last: frozenset[int] = frozenset()
    """Of the last pass: it starts no copies of a next one, may end early, and what comes after all layers is in it."""

    @property
    def nbytes(self) -> int:
        return shared_bytes([self.alloc])

    def meets(self, other: Room) -> bool:
        """Whether both are needed at the same time."""
        return bool(self.slots & other.slots or self.last & other.last)


def offsets(rooms: Sequence[Room], start: int, end: int) -> dict[str, int] | None:
    """A place for each allocation, apart from those of the same time; None where they do not fit."""
    placed: list[tuple[int, Room]] = []
    for room in sorted(rooms, key=lambda r: -r.nbytes):
        at = start
        for first, other in sorted(placed, key=lambda pair: pair[0]):
            if room.meets(other) and first < at + room.nbytes and at < first + other.nbytes:
                at = first + other.nbytes
        if at + room.nbytes > end:
            return None
        placed.append((at, room))
    return {room.alloc.pointer: at for at, room in placed}


def fullest(rooms: Sequence[Room], slots: int) -> str:
    """The slot that needs the most shared memory."""
    needs = [sum(r.nbytes for r in rooms if slot in r.slots or slot in r.last) for slot in range(slots)]
    return f"{max(needs):,} bytes at level {needs.index(max(needs)) // 2}"


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
        firsts: list[int] = []
        for number, part in enumerate(self.parts):
            first = ends.get(self.levels[number], 0)
            firsts.append(first)
            for level in range(self.levels[number], self.last(number) + 1):
                ends[level] = (first + part.blocks) % self.blocks
        return firsts

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
        levels = {self.levels[n] - 1 for n, part in enumerate(self.parts) if part.waits}
        for number, part in enumerate(self.parts):
            inside = range(self.levels[number], self.last(number))
            levels |= set() if {*part.kernel.exchanged} & {*part.sent} else {*inside}
        return levels

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


def copies(near: Mapping[str, Alloc]) -> list[Statement]:
    """Copies of small tensors to shared memory, as one group."""
    statements = [s for pointer, alloc in near.items() for s in copied_whole(pointer, alloc)]
    return [*statements, CommitCopies()] if statements else []


def from_near(body: tuple[Statement, ...], near: Mapping[str, Alloc]) -> tuple[Statement, ...]:
    """A body that loads small tensors from shared memory."""
    rooms = {pointer: alloc.pointer for pointer, alloc in near.items()}
    return Renaming(lambda n: n, rooms, frozenset(rooms.values())).body(body)


def after_words(parts: Sequence[Statement], copied: Sequence[Statement]) -> list[Statement]:
    """The parts of a level, and copies that start once its blocks have received what they wait for."""
    if not copied:
        return [*parts]
    firsts: list[Statement] = []
    rests: list[Statement] = []
    for s in parts:
        part = part_in(s)
        assert part is not None, "it is a part"
        waits = [at for at, s in enumerate(part.body) if isinstance(s, Receive)]
        end = waits[0] + 1 if waits else 0
        firsts += [with_part(s, lambda p, end=end: replace(p, body=p.body[:end]))] if end else []
        rests.append(with_part(s, lambda p, end=end: replace(p, body=p.body[end:])))
    return [*firsts, *copied, *rests]


NEXT = "next."
"""Before the name of a pointer: that of the next pass."""
_BARRIER_BYTES = 1024
"""Shared memory for the barriers of all parts, before everything else."""
_OWN = 512
"""Where there is shared memory for what threads sent themselves."""


def persistent_kernel(
    name: str,
    parts: Sequence[Part],
    *,
    blocks: int,
    room: int,
    passes: int,
    tabled: Sequence[str],
    words: Words | None = None,
    copying_warp: bool = False,
    words_first: bool = True,
) -> Kernel | Refused:
    """One kernel for parts, each with a few blocks of a grid; refused where shared memory is too small.

    Its pointers are those of the parts; the caller orders them. With a `copying_warp` it has one that starts copies.
    With `words_first` copies that would delay the words of a level start after these.
    """
    whole = _Persistent(parts, blocks, room, passes, frozenset(tabled), words or Words(), copying_warp, words_first)
    return whole.kernel(name)


class _Persistent(Levels):
    def __init__(
        self,
        parts: Sequence[Part],
        blocks: int,
        room: int,
        passes: int,
        tabled: frozenset[str],
        words: Words,
        copying_warp: bool,
        words_first: bool,
    ) -> None:
        super().__init__(parts, blocks, passes)
        self.room, self.tabled, self.words, self.words_first = room, tabled, words, words_first
        self.threads = max(part.launch.block for part in parts)
        self.allocations = [part.allocations() for part in parts]
        self.filled = [part.copied_to() for part in parts]
        self.owned = owned(parts, self.runs, self.first, _BARRIER_BYTES - _OWN)
        self.streams = copying_warp and any(has_bulk(parts[i].kernel.early) for i in self.ahead)
        early = [only_prefetches(part.kernel.early) for part in parts]
        self.prefetching = [i for i, only in enumerate(early) if only and self.layers > 2 and not self.is_after(i)]
        """The parts that prefetch what they will copy: they do so while the part before them waits."""

    def kernel(self, name: str) -> Kernel | Refused:
        if self._offsets() is None:
            return Refused(
                "shared_memory_holds_a_level", fullest(self._rooms(), 2 * self.count), f"{self.room:,} bytes"
            )
        self._look_ahead()
        places = self._offsets()
        assert places is not None, "copies that start earlier were tried"
        allocations = [replace(r.alloc, offset=places[r.alloc.pointer]) for r in self._rooms()]
        barriers = self._barriers()
        owns = {own.first: own for own in sorted(self.owned.values(), key=lambda own: own.is_before)}
        ends = accumulate([own.nbytes for own in owns.values()], initial=_OWN)
        allocations += [own.alloc(at) for own, at in zip(owns.values(), ends, strict=False)]
        body: list[Statement] = [*allocations, *barriers]
        body += [s for own in owns.values() for s in own.started(self.words)]
        if self.words.published:
            sent = [self.words.publish(one, self.threads) for one in self.words.published]
            body.append(When(IN_FIRST, tuple(sent)))
            body.append(GridBarrier(None))
        barriers_before = 0
        awaited = {*self.awaited(), *([self.count - 1] if self.words.awaits_passes else [])}
        late: list[Statement] = []
        stream: list[Statement] = [*allocations, *barriers]
        start = [s for n in self.in_order() if self.barrier(n) < 0 for s in self._copied(n, ahead=False)]
        stream += copy_stream.in_first_pass(copy_stream.of_warp(start))
        first = [self._prefetched(n, ahead=False) for n in self.prefetching if self.levels[n] < 2]
        if self.streams:
            stream += copy_stream.in_first_pass([copy_stream.prefetched(s) for s in first])
            stream += self.words.prefetched(self.blocks, self.passes)
        elif first:
            body.append(When(IN_FIRST, tuple(first)))
        for level in range(self.count):
            parts = [s for number in range(len(self.parts)) for s in self._at(number, level)]
            body += after_words(parts, late)
            copies = self._started(level, stream)
            prefetches = self._prefetches(level)
            if self.streams:
                stream += [with_part(s, copy_stream.prefetched) for s in prefetches]
                prefetches.clear()
            # The next level receives its words first: they would queue after the weights.
            is_late = self.words_first and level not in awaited and level + 1 < self.count and bool(copies)
            late, now = (copies, []) if is_late else ([], copies)
            now = [*self._after_copies(level), *now]
            barriers_before += level in awaited
            body.append(GridBarrier(barriers_before if level in awaited else None, (*now, *prefetches)))
        early: list[Statement] = [replace(b, is_new=True) for b in barriers]
        start = [s for n in self.in_order() if self.barrier(n) < 0 for s in self._copied(n, ahead=True)]
        start = copy_stream.of_others(start) if self.streams else start
        early += [*allocations, *start] if start else []
        total = max([places[r.alloc.pointer] + r.nbytes for r in self._rooms()], default=0)
        threads = self.threads + (copy_stream.THREADS if self.streams else 0)
        launch = Launch(self.blocks, threads, total, cooperative=True)
        return Kernel(
            name,
            (),
            (),
            "tile",
            tuple(body),
            sizes=sizes_in((*early, *body, *stream)),
            launch=launch,
            early=tuple(early),
            stream=tuple(stream) if self.streams else (),
            passes=self.passes,
            evict_last=self.words.evict_last,
            kind=KernelKind.PERSISTENT,
        )

    def _started(self, level: int, stream: list[Statement]) -> list[Statement]:
        """The copies that start at the barrier after a level; some go to the warp that copies."""
        statements: list[Statement] = []
        for free in (Free(level), Free(level, in_last=True)):
            issued = [n for n in self.issued(level) if self.is_after(n) == free.in_last]
            copies = [s for number in issued for s in self._copies(number)]
            if free in self._streamed():
                stream += copy_stream.of_warp(copies, free)
                waiting = [w for n in issued for w in self._waiting(n)]
                signals = free.signaled(waiting, self.blocks, self.threads, self.passes)
                copies = [*signals, *copy_stream.of_others(copies)]
            statements += copies
        return statements

    def _waiting(self, number: int) -> list[tuple[SubGrid, range]]:
        """The blocks and passes in which the warp that copies waits before it starts the copies of a part."""
        ahead, runs = self.barrier(number) < 0, self.runs[number]
        parts = [s for s in self._copied(number, ahead=ahead) if isinstance(s, SubGrid) and has_bulk([s])]
        # Those of the first pass start with the kernel.
        return [(part, range(max(runs.start - ahead, 0), runs.stop - ahead)) for part in parts]

    def _streamed(self) -> list[Free]:
        """When the warp that copies starts some."""
        bulk = [n for n in self.ahead if has_bulk(self.parts[n].kernel.early)]
        return [*{Free(self.issue(n)[1], self.is_after(n)): 0 for n in bulk}] if self.streams else []

    def _barriers(self) -> list[AllocBarriers]:
        """The barriers that count bulk copies, of all parts that have them."""
        barriers: list[AllocBarriers] = []
        end = 0
        for number, part in enumerate(self.parts):
            own = [s for s in part.kernel.body if isinstance(s, AllocBarriers)]
            barriers += [s for s in self._renaming(number, "").body(tuple(own)) if isinstance(s, AllocBarriers)]
        barriers += [free.barrier(self.threads) for free in self._streamed()]
        for at, one in enumerate(barriers):
            barriers[at] = replace(one, is_new=False, offset=end)
            end += BARRIER_BYTES * one.count
        assert end <= _OWN, "they fit"
        return barriers

    def _at(self, number: int, level: int) -> list[Statement]:
        """What a part does at a level."""
        at = level - self.levels[number]
        if not 0 <= at < len(self.segments[number]):
            return []
        part = self.parts[number]
        segment = in_phase(self._renamed(number, self.segments[number][at]), self.runs[number].start)
        first: tuple[Statement, ...] = ()
        if at == 0 and part.kernel.early and number not in self.ahead and number not in self.prefetching:
            # Weights that do not fit whole: the first of them are on their way while the block waits.
            first = self._renamed(number, part.kernel.early)
        if number in self.ahead:
            segment = awaiting(segment, self.later(number))
        before, segment = self._before(number, at, segment)
        if part.received or part.sent:
            segment = read(segment, {part.pointers[n]: own for (i, n), own in self.owned.items() if i == number})
            sizes = {f"{a.pointer}_{number}": a.count for a in self.allocations[number] if a.space == "shared"}
            segment = self._exchange(number, at).body(segment, sizes)
        body, is_rare = without_last_barrier((*first, *before, *segment), self.blocks), self.is_after(number)
        whole = SubGrid(part.blocks, part.launch.block, self.first[number], body, is_rare)
        return in_passes([whole], self.runs[number], self.passes)

    def _after_copies(self, level: int) -> list[Statement]:
        """Threads that do not run a part may use its shared memory later. A barrier of the block orders them after its
        copies; tools that look for races follow a thread's own wait alone, which is over at once here."""
        statements: list[Statement] = []
        for number, part in enumerate(self.parts):
            at = level - self.levels[number]
            if self.streams and part.launch.block < self.threads and 0 <= at < len(self.segments[number]):
                body = in_phase(self._renamed(number, self.segments[number][at]), self.runs[number].start)
                waits = copy_stream.waits_once(body)
                own = SubGrid(part.blocks, self.threads, self.first[number], waits)
                statements += in_passes([own] if waits else [], self.runs[number], self.passes)
        return statements

    def _renamed(self, number: int, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """A body of a part with its names in the whole kernel, whose shared memory is allocated at its start."""
        return self._renaming(number, "").body(without(without(body, Alloc, shared=True), AllocBarriers))

    def _before(
        self, number: int, segment: int, body: tuple[Statement, ...]
    ) -> tuple[list[Statement], tuple[Statement, ...]]:
        """What a segment brings near before it receives anything, and the segment after that."""
        near, first = self._near(number), self._renaming(number, "").body(self.parts[number].kernel.opening)
        if segment or not (near or first):
            return [], body
        received = {self.parts[number].pointers[name] for name in self.parts[number].received}
        # Registers that it loads to are those of the body.
        own, rest = ([s for s in body if isinstance(s, Alloc) is kind] for kind in (True, False))
        if any(tensor.pointer in received for tensor, _ in reads(first)):
            own, first, rest = [], (), [*own, *first, *rest]
        body = tuple(rest)
        if not near:
            return [*own, *first], body
        later = sum(isinstance(s, CommitCopies) for s in first)
        statements = [*copies(near), *own, *first]
        return statements, (AwaitCopies(later), Barrier(), *from_near(body, near))

    def _near(self, number: int) -> dict[str, Alloc]:
        part = self.parts[number]
        return {part.pointers[n]: replace(a, pointer=f"{a.pointer}_{number}") for n, a in part.near.items()}

    def _exchange(self, number: int, segment: int) -> PartWords:
        """How the words of a segment are sent and received."""
        part = self.parts[number]
        firsts = {own.first: own.tensor for own in self.owned.values()}
        return PartWords(
            self.words,
            {part.pointers[n]: sent for n, sent in part.sent.items()},
            {part.pointers[n]: got for n, got in part.received.items() if (number, n) not in self.owned},
            f"_{number}_{segment}",
            self.runs[number][-1],
            self._pause(self.levels[number] + segment),
            {part.pointers[n]: firsts[sent.first] for n, sent in part.sent.items() if sent.first in firsts},
            threads=part.launch.block,
            loads_ahead=not self.words_first,
        )

    def _pause(self, level: int) -> int:
        """Cycles in which a level looks for no words: they come some 0.4 µs after the last block has sent them, and
        loads of those that look too early delay them. Blocks end a level with few weights at almost the same time."""
        is_even = 0 < self._weights(level - 1) < _FEW_BYTES
        return self.words.pause * 3 // 5 if is_even else self.words.pause

    def _weights(self, level: int) -> int:
        """Bytes of weights that a block has copied for a level."""
        own = [n for n in self.ahead if self.levels[n] == level]
        return sum([shared_bytes([a]) for n in own for a in self.allocations[n] if a.pointer in self.filled[n]])

    def _renaming(self, number: int, suffix: str) -> Renaming:
        part = self.parts[number]
        barriers = [s.name for s in part.kernel.body if isinstance(s, AllocBarriers)]
        own = {name: f"{name}_{number}" for name in (*(a.pointer for a in self.allocations[number]), *barriers)}
        return Renaming(lambda n: f"{n}_{number}{suffix}", {**part.pointers, **own})

    def _copies(self, number: int) -> list[Statement]:
        """The copies of a part, of this pass or of the next one."""
        ahead = self.barrier(number) < 0
        if ahead and self.passes == 1:
            return []
        *copies, commit = self._copied(number, ahead=ahead)
        return [*in_passes(copies, self.runs[number], self.passes, ahead=ahead), commit]

    def _copied(self, number: int, *, ahead: bool) -> list[Statement]:
        """The copies of a part as one group. Blocks without any commit an empty one: all count alike."""
        part, naming = self.parts[number], self._ahead_of(number, ahead=ahead)
        body = without(without(part.kernel.early, Alloc, shared=True), CommitCopies)
        body = without(body, AllocBarriers)
        if has_bulk(body):
            # What was there before was written and read by threads, and bulk copies overwrite it.
            body = (FenceShared(), *body)
        is_rare = self.is_after(number)
        whole = SubGrid(part.blocks, part.launch.block, self.first[number], naming.body(body), is_rare)
        return [whole, CommitCopies()]

    def _ahead_of(self, number: int, *, ahead: bool) -> Renaming:
        """Names of what a part does before it runs, of this pass or of the next one."""
        part, naming = self.parts[number], self._renaming(number, "_early")
        if not ahead:
            return naming
        names = {n: NEXT + to if to in self.tabled else to for n, to in part.pointers.items()}
        return replace(naming, pointers={**naming.pointers, **names})

    def _prefetches(self, level: int) -> list[Statement]:
        """What is prefetched after a level, two levels before it is copied."""
        statements: list[Statement] = []
        for number in self.prefetching:
            ahead = self.levels[number] < 2
            if (self.levels[number] - 2) % self.layers == level:
                own = self._prefetched(number, ahead=ahead)
                statements += in_passes([own], self.runs[number], self.passes, ahead=ahead)
        return statements

    def _prefetched(self, number: int, *, ahead: bool) -> SubGrid:
        part = self.parts[number]
        body = self._ahead_of(number, ahead=ahead).body(part.kernel.early)
        return SubGrid(part.blocks, part.launch.block, self.first[number], body)

    def _rooms(self) -> list[Room]:
        rooms: list[Room] = []
        for number in range(len(self.parts)):
            early = self.filled[number]
            for alloc in self.allocations[number]:
                if alloc.space != "shared":
                    continue
                first = 2 * self.levels[number]
                if number in self.ahead and alloc.pointer in early:
                    first = 2 * self.barrier(number) + 1
                named = replace(alloc, pointer=f"{alloc.pointer}_{number}")
                rooms.append(self._room(number, named, range(first, 2 * self.last(number) + 1)))
            level = 2 * self.levels[number]
            rooms += [self._room(number, alloc, range(level, level + 1)) for alloc in self._near(number).values()]
            for at, allocs in enumerate(self._got[number]):
                slots = range(level + 2 * at, level + 2 * at + 1)
                rooms += [self._room(number, alloc, slots) for alloc in allocs]
        return rooms

    @cached_property
    def _got(self) -> list[list[list[Alloc]]]:
        """Shared memory for what each segment of each part receives."""
        rooms: list[list[list[Alloc]]] = []
        for number, segments in enumerate(self.segments):
            renamed = [self._renaming(number, "").body(segment) for segment in segments]
            rooms.append([self._exchange(number, at).rooms(body) for at, body in enumerate(renamed)])
        return rooms

    def _room(self, number: int, alloc: Alloc, slots: range) -> Room:
        """Shared memory of a part in some slots, which are below 0 in the pass before."""
        in_last = frozenset([s for s in slots if s >= 0] if self.runs[number].stop == self.passes else ())
        layer = frozenset(() if self.is_after(number) else [s % (2 * self.layers) for s in slots])
        return Room(alloc, layer, in_last)

    def _offsets(self) -> dict[str, int] | None:
        """A place in shared memory for each allocation, after those of barriers; None without room."""
        return offsets(self._rooms(), _BARRIER_BYTES if self._barriers() or self.owned else 0, self.room)

    def _look_ahead(self) -> None:
        """Start copies as many levels before as there is room for, in the order in which they are needed. Those after
        all layers have the room that these leave."""
        for after in (False, True):
            grows = True
            while grows:
                grows = False
                for number in sorted([n for n in self.ahead if self.is_after(n) == after], key=self.levels.__getitem__):
                    self.ahead[number] += 1
                    inside = after or self.ahead[number] + 2 < self.layers
                    if inside and self.is_ordered() and self._offsets() is not None:
                        grows = True
                    else:
                        self.ahead[number] -= 1

"""The arena: one piece of memory that all tensors of a phase share, each where it fits while it lives.

Numbers are placed by best fit. Symbolic sizes follow, in cells that only equal sizes share.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.errors import GraphError
from dovetail.ir.dim import Size, check_size, divide, floordiv, total
from dovetail.ir.value import Value
from dovetail.plan.liveness import Flow, round_up

Pool: TypeAlias = Literal["arena", "scratch", "bound", "heap", "donated"]
"""What a slot is in: memory of a run, of the bind phase, of bound results, of its own, or of a donated input."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The bytes that a tensor takes. In the heap each slot is an allocation of its own, made when its size is known."""

    offset: Size
    size: Size
    pool: Pool = "arena"
    donor: Value | None = None
    """The input whose memory it is, where that is donated."""


@dataclass(frozen=True, slots=True)
class Arena:
    """The slot of each tensor, by number, and which steps write over an operand."""

    slots: dict[int, Slot]
    over: dict[int, int]
    """Step -> the tensor whose memory its result takes."""
    size: Size
    unshared: Size
    """What the tensors would take without sharing."""
    peak: Size
    """The most that is held at once."""


@dataclass(slots=True)
class _Block:
    """Memory that one tensor after the other takes, each in place of the one before."""

    size: Size
    first: int
    last: int
    tensors: list[int]
    offset: Size | None = None


def allocate(
    flow: Flow,
    order: Sequence[int],
    pool: Pool,
    alignment: int,
    elsewhere: Collection[int] = (),
    launched: Sequence[Collection[int]] | None = None,
) -> Arena:
    """Slots for the tensors of a schedule, except those that are stored `elsewhere`.

    `launched` has for each step in order the tensors that its launches use, where these are not those of the step:
    what no launch uses has no slot.
    """
    aligned = Aligned(alignment)
    blocks, over = _find_blocks(flow, order, aligned, elsewhere)
    blocks = blocks if launched is None else _of_launches(blocks, launched, len(order))
    worst = _fullest(blocks, flow, len(order))
    extent = _place([b for b in blocks if isinstance(b.size, int)])
    end = _place_cells([b for b in blocks if not isinstance(b.size, int)], extent)
    inside = [b for b in blocks if b.offset is not None]
    slots = {t: Slot(0, flow.sizes[t], "heap") for b in blocks if b.offset is None for t in b.tensors}
    slots |= {t: Slot(b.offset, flow.sizes[t], pool) for b in inside for t in b.tensors if b.offset is not None}
    slots |= {t: Slot(0, 0, pool) for t, size in enumerate(flow.sizes) if size == 0 and t not in elsewhere}
    return Arena(
        slots,
        {step: taken for step, taken in over.items() if taken in slots and slots[taken].pool == pool},
        end,
        add_up(b.size for b in inside for _ in b.tensors),
        add_up(b.size for b in inside if b.first <= worst <= b.last),
    )


class Aligned:
    """Sizes rounded up to the alignment; equal sizes are rounded once."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self._known: dict[Size, Size] = {}

    def __call__(self, size: Size) -> Size:
        if isinstance(size, int):
            return round_up(size, self.alignment)
        aligned = self._known.get(size)
        if aligned is None:
            exact = divide(size, self.alignment) is not None
            up = size if exact else floordiv(size + (self.alignment - 1), self.alignment) * self.alignment
            aligned = self._known[size] = up
        return aligned


def add_up(sizes: Iterable[Size]) -> Size:
    """Return the sum of many sizes, of which few are different."""
    counts: dict[Size, int] = {}
    for size in sizes:
        counts[size] = counts.get(size, 0) + 1
    return total(size * count for size, count in counts.items())


def _find_blocks(
    flow: Flow, order: Sequence[int], aligned: Aligned, elsewhere: Collection[int]
) -> tuple[list[_Block], dict[int, int]]:
    """Blocks with the times they live, in the order of their first, and steps that write over an operand."""
    left, sizes = list(flow.readers), flow.sizes
    living: dict[int, _Block] = {}
    blocks: list[_Block] = []
    over: dict[int, int] = {}
    for time, step in enumerate(order):
        read, results = flow.reads[step], flow.makes[step]
        for tensor in read:
            left[tensor] -= 1
        for tensor in results:
            if sizes[tensor] == 0 or tensor in elsewhere:
                continue
            size = aligned(sizes[tensor])
            taken = next((t for t in flow.over[step] if not left[t] and t in living), None) if flow.over[step] else None
            if taken is not None:
                block = living.pop(taken)
                block.tensors.append(tensor)
                over[step] = taken
            else:
                block = _Block(size, time, len(order), [tensor])
                blocks.append(block)
            living[tensor] = block
        for tensor in read + results:
            if not left[tensor] and (ended := living.pop(tensor, None)) is not None:
                ended.last = time
    return blocks, over


def _of_launches(blocks: Iterable[_Block], launched: Sequence[Collection[int]], end: int) -> list[_Block]:
    """Blocks from the first launch that uses them to the last, in this order; what lives to the end still does."""
    times: dict[int, list[int]] = {}
    for time, tensors in enumerate(launched):
        for tensor in tensors:
            times.setdefault(tensor, []).append(time)
    launched_blocks: list[_Block] = []
    for block in blocks:
        used = [time for tensor in block.tensors for time in times.get(tensor, ())]
        if used:
            last = end if block.last == end else max(used)
            launched_blocks.append(_Block(block.size, min(used), last, block.tensors))
    return sorted(launched_blocks, key=lambda b: b.first)


def _fullest(blocks: Iterable[_Block], flow: Flow, steps: int) -> int:
    """Return the first time when most is held."""
    change = [0] * (steps + 2)
    for block in blocks:
        weight = flow.weights[block.tensors[0]]
        change[block.first] += weight
        change[block.last + 1] -= weight
    live = list(accumulate(change))
    return live.index(max(live))


def _place(blocks: list[_Block]) -> int:
    """Offsets for blocks of known size, and the extent of them all."""
    extent = _best_fit(blocks)
    least = _lower_bound(blocks)
    if extent > least:
        met = _neighbours(blocks)
        best = [b.offset for b in blocks]
        for first in _FIRST if met is not None else ():
            if extent <= least:
                break
            order = sorted(range(len(blocks)), key=lambda i: (-first(blocks[i]), i))
            other = _tightest(blocks, order, met or [], extent - 1)
            if other is not None:
                extent, best = other, [b.offset for b in blocks]
        for block, offset in zip(blocks, best, strict=True):
            block.offset = offset
    return extent


def _length(block: _Block) -> int:
    return block.last - block.first


_FIRST: tuple[Callable[[_Block], int], ...] = (
    lambda block: _number(block.size),
    _length,
    lambda block: _number(block.size) * _length(block),
)
"""What the blocks that are placed first have most of: bytes, time, or both, as the saved tensors of a forward pass."""


def _number(size: Size | None) -> int:
    assert isinstance(size, int), "blocks of known size only"
    return size


def _by_end(blocks: list[_Block]) -> list[_Block]:
    return sorted(blocks, key=lambda b: b.last)


def _lower_bound(blocks: list[_Block]) -> int:
    live = most = ended = 0
    ends = _by_end(blocks)
    for block in blocks:
        while ends[ended].last < block.first:
            live -= _number(ends[ended].size)
            ended += 1
        live += _number(block.size)
        most = max(most, live)
    return most


def _best_fit(blocks: list[_Block]) -> int:
    """Return in the order of time the smallest hole that is large enough, else more memory."""
    free = _Free()
    ends = _by_end(blocks)
    ended = 0
    for block in blocks:
        while ends[ended].last < block.first:
            free.give(_number(ends[ended].offset), _number(ends[ended].size))
            ended += 1
        block.offset = free.take(_number(block.size))
    return free.extent


class _Free:
    """The holes of an arena that grows."""

    def __init__(self) -> None:
        self.extent = 0
        self._holes: list[tuple[int, int]] = []
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def take(self, size: int) -> int:
        at = bisect_left(self._holes, (size, 0))
        if at < len(self._holes):
            hole, start = self._holes[at]
            self._remove(start, hole)
            if hole > size:
                self._insert(start + size, hole - size)
            return start
        start = self._ends.get(self.extent, self.extent)
        if start < self.extent:
            self._remove(start, self.extent - start)
        self.extent = start + size
        return start

    def give(self, start: int, size: int) -> None:
        end = start + size
        after = self._starts.get(end)
        if after is not None:
            self._remove(end, after)
            end += after
        before = self._ends.get(start)
        if before is not None:
            self._remove(before, start - before)
            start = before
        self._insert(start, end - start)

    def _insert(self, start: int, size: int) -> None:
        insort(self._holes, (size, start))
        self._starts[start] = size
        self._ends[start + size] = start

    def _remove(self, start: int, size: int) -> None:
        del self._holes[bisect_left(self._holes, (size, start))]
        del self._starts[start]
        del self._ends[start + size]


_MOST_PAIRS, _FEW_PAIRS = 16, 1 << 17
"""Pairs of blocks alive together, for each block and of all, up to which other orders than that of time are tried."""


def _neighbours(blocks: list[_Block]) -> list[list[int]] | None:
    """Return for each block those that live with it; None where there are too many pairs."""
    met: list[list[int]] = [[] for _ in blocks]
    active: list[int] = []
    pairs = 0
    for index, block in enumerate(blocks):
        active = [a for a in active if blocks[a].last >= block.first]
        pairs += len(active)
        if pairs > max(_MOST_PAIRS * len(blocks), _FEW_PAIRS):
            return None
        for other in active:
            met[other].append(index)
        met[index] = list(active)
        active.append(index)
    return met


def _tightest(blocks: list[_Block], order: Sequence[int], met: list[list[int]], most: int) -> int | None:
    """Return the extent of blocks in an order, each in the tightest gap between those that live with it; None above
    `most`.
    """
    extent = 0
    spans: list[tuple[int, int] | None] = [None] * len(blocks)
    for index in order:
        size = _number(blocks[index].size)
        taken = sorted([span for other in met[index] if (span := spans[other]) is not None])
        offset = blocks[index].offset = _tightest_gap(taken, size)
        spans[index] = offset, size
        extent = max(extent, offset + size)
        if extent > most:
            return None
    return extent


def _tightest_gap(taken: list[tuple[int, int]], size: int) -> int:
    best, tightest, at = -1, 0, 0
    for start, length in taken:
        gap = start - at
        if gap >= size and (best < 0 or gap < tightest):
            best, tightest = at, gap
        if start + length > at:
            at = start + length
    return at if best < 0 else best


def _place_cells(blocks: list[_Block], start: Size) -> Size:
    """Offsets for blocks of symbolic size from `start` on, and the end of all; a block that no sum reaches has none."""
    end = start
    free: dict[Size, list[Size]] = {}
    ends = _by_end(blocks)
    ended = 0
    for block in blocks:
        while ends[ended].last < block.first:
            offset = ends[ended].offset
            if offset is not None:
                free.setdefault(ends[ended].size, []).append(offset)
            ended += 1
        cells = free.get(block.size)
        if cells:
            block.offset = cells.pop()
            continue
        try:
            further = end + block.size
            check_size(further)
        except GraphError:
            continue  # too many different sizes to add up: the block is allocated alone
        block.offset, end = end, further
    return end

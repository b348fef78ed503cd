"""What the parts of a resident kernel send to each other: elements in stamped words, which need no barrier of the grid.

Every pass has words of its own, so that a word is written once in a launch. A part first receives all that it reads of
others into shared memory. Parts follow each other in the same order in all blocks, and all blocks run at the same time,
so that each word that a block waits for is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bool_, u8
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.block_stages import without_copies_from_shared
from dovetail.kernels.loops.composed import Renaming
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AwaitCopies,
    Barrier,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Prefetch,
    Receipt,
    Receive,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    When,
    add,
    minimum,
    mul,
)
from dovetail.kernels.loops.resident_bodies import PASS
from dovetail.kernels.loops.resident_loads import loaded_ahead
from dovetail.kernels.loops.resident_passes import IN_FIRST, in_passes
from dovetail.kernels.loops.resident_pauses import pause_of
from dovetail.kernels.loops.resident_stream import IS_FIRST
from dovetail.kernels.loops.shared_copies import without_shared_copies
from dovetail.kernels.loops.uniform import Read, Uniform, reads

OWN_BYTES = 8
"""Bytes of elements of a vector of words, which a thread receives at once."""
START = 128
"""Bytes before the first word: the counter of the grid."""
_LINE = 128
"""Bytes of a line of the cache: words of each tensor start with one."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A tensor that blocks send."""

    first: int
    """Bytes from the start of the words of a pass to its own."""
    kept: str = ""
    """The pointer to where the last pass also writes it, for kernels that read it later."""


@dataclass(frozen=True, slots=True)
class Received:
    """A tensor that blocks receive, or a part of one."""

    first: int
    dtype: DType
    count: int
    is_before: bool = False
    """Whether the pass before has sent it."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the first pass receives: blocks send it to each other first, from where it is in memory."""

    pointer: str
    received: Received


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a kernel."""

    counter: str = ""
    """The pointer that they follow."""
    nbytes: int = 0
    """Bytes of a pass."""
    published: tuple[Published, ...] = ()
    awaits_passes: bool = True
    """Whether a pass needs more of the one before it than it receives."""
    pause: int = 0
    """Cycles after a level in which no block looks for what that has sent."""
    evict_last: bool = False
    """Whether L2 is told to keep words: each is used once in a launch, and all weights go through L2 until the next."""

    def tensor(self, dtype: DType, first: int, strides: Sequence[Any], offset: Any = 0) -> Tensor:
        """A tensor in words, whose first axis is the pass that receives it, and 0 what was published."""
        words = tuple([2 * stride for stride in strides])
        return Tensor(self.counter, dtype, (self.nbytes, *words), START + first + 2 * offset, "stamped")

    def publish(self, one: Published, threads: int) -> Statement:
        """Send what is in memory, an element for each thread."""
        got = one.received
        item = got.dtype.itemsize
        index = add(mul(ThreadIndex("block"), Extent(threads)), ThreadIndex("thread"))
        target = self.tensor(got.dtype, got.first, (item,))
        store = Store(target, (Extent(0), Name("own")), Load(Tensor(one.pointer, got.dtype, (item,)), (Name("own"),)))
        inside = Call("less", (Name("own"), Extent(got.count)), bool_)
        return SubGrid(-(-got.count // threads), threads, 0, (Set("own", index), When(inside, (store,))))

    def prefetched(self, blocks: int, passes: int) -> list[Statement]:
        """What the warp that copies does in each pass: bring the words of the next one to the cache of the device, a
        share in each block.

        They were last used a launch before. Weights have gone through that cache since, and threads that look for a
        word that is not there wait for memory.
        """
        if not self.nbytes:
            return []
        share = -(-self.nbytes // (blocks * _LINE)) * _LINE
        first = minimum(mul(ThreadIndex("block"), Extent(share)), Extent(self.nbytes - share))
        source = Tensor(self.counter, u8, (self.nbytes, 1), START)

        def asked(slot: Expr) -> Statement:
            one = Prefetch(source, (slot, first), Extent(share))
            return SubGrid(-(-self.nbytes // share), LANES, 0, (When(IS_FIRST, (one,)),))

        later = in_passes([asked(add(PASS, Extent(2)))], range(passes - 1), passes)
        return [When(IN_FIRST, (asked(ZERO), asked(Extent(1)))), *later]


@dataclass(frozen=True, slots=True)
class PartWords:
    """How one segment of a part sends and receives."""

    words: Words
    sent: Mapping[str, Sent]
    received: Mapping[str, Received]
    suffix: str
    last: int
    """The last pass that sends anything."""
    level: int = 0
    owned: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Shared memory, an element for each thread, for what is sent through a pointer and its own thread reads later."""
    threads: int = 0
    """Those of a block."""
    loads_ahead: bool = False
    """Whether all copies of a part have started before it receives anything, so that it may wait for them first."""

    def body(self, body: tuple[Statement, ...], sizes: Mapping[str, int]) -> tuple[Statement, ...]:
        """The segment with its words: it receives, then it runs, and its stores send. `sizes` has the elements of its
        shared memory."""
        receipts: list[Receipt] = []
        rooms: dict[str, str] = {}
        sliced: dict[str, int] = {}
        for pointer, slice_ in self._slices(body).items():
            got = self.received[pointer]
            rooms[pointer] = room = self._room(pointer)
            sliced[room] = len(slice_.at)
            target = Tensor(room, got.dtype, (got.dtype.itemsize,), space="shared")
            at = add(PASS, Extent(0 if got.is_before else 1))
            source = self.words.tensor(got.dtype, got.first, slice_.strides)
            receipts.append(Receipt(source, (at, *slice_.at), target, slice_.count))
        renaming = Renaming(lambda n: n, rooms, frozenset(rooms.values()), sliced)
        found = without_copies_from_shared(renaming.body(self._sending(body)))
        if not receipts:
            return found
        got = {r.target.pointer: r.count for r in receipts}
        found, instead = without_shared_copies(found, sizes, got)
        allocations, found = _split(Renaming(lambda n: n, instead).body(found))
        is_early = all(self.received[pointer].is_before for pointer in rooms)
        pause = pause_of(self.level, is_early=is_early) if self.words.pause else ""
        receive = Receive(tuple(receipts), pause)
        ahead, found = loaded_ahead(found, got) if self.loads_ahead else ((), found)
        allocations += ahead
        if isinstance(found[0], AwaitCopies) and isinstance(found[1], Barrier):
            # One barrier is for what this thread received and for what it copied.
            return (*allocations, receive, *found)
        if _are_own(found, receipts, self.threads):
            return (*allocations, receive, *found)
        return (*allocations, receive, Barrier(), *found)

    def rooms(self, body: tuple[Statement, ...]) -> list[Alloc]:
        """Shared memory for what a segment receives."""
        slices = self._slices(body).items()
        return [Alloc(self._room(pointer), self.received[pointer].dtype, s.count, "shared") for pointer, s in slices]

    def _room(self, pointer: str) -> str:
        return f"got_{pointer}{self.suffix}"

    def _slices(self, body: tuple[Statement, ...]) -> dict[str, _Slice]:
        """What a segment reads of each tensor that it receives: the same for all threads of a block."""
        every: dict[str, list[Read]] = {}
        for tensor, at in reads(body):
            if tensor.pointer in self.received:
                every.setdefault(tensor.pointer, []).append((tensor, at))
        own = Uniform(body, (PASS.name,))
        return {p: _sliced(found, self.received[p], own) for p, found in every.items()}

    def _sending(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for s in body:
            if isinstance(s, (Loop, When)):
                s = replace(s, body=self._sending(s.body))
            elif isinstance(s, Store) and s.tensor.pointer in self.sent:
                sent = self.sent[s.tensor.pointer]
                tensor = self.words.tensor(s.tensor.dtype, sent.first, s.tensor.strides, s.tensor.offset)
                # Loads after a word is sent are loads again: what it has is computed once.
                value = Name(f"sent_{sent.first}", s.value.dtype)
                found += [Set(value.name, s.value), Store(tensor, (add(PASS, Extent(1)), *s.at), value)]
                if s.tensor.pointer in self.owned:
                    found.append(Store(self.owned[s.tensor.pointer], (ThreadIndex("thread"),), value))
                if not sent.kept:
                    continue
                last = Call("equal", (PASS, Extent(self.last)), bool_)
                s = When(last, (Store(replace(s.tensor, pointer=sent.kept), s.at, value),))
            found.append(s)
        return tuple(found)


def _are_own(body: tuple[Statement, ...], receipts: Sequence[Receipt], threads: int) -> bool:
    """Whether each thread reads of what a block received only what it received itself, so that it waits for no other:
    vectors of 8 bytes, of which a thread has every one whose number is its own, or that and a multiple of all."""
    rooms = {r.target.pointer: r.count * r.target.dtype.itemsize for r in receipts}
    if any(nbytes % (OWN_BYTES * threads) for nbytes in rooms.values()):
        return False
    # A statement of any other kind that names that memory, in whichever field, keeps the barrier.
    others = [s for s in everything(body) if not isinstance(s, (Set, Store, Loop, When))]
    if any(pointer in str(s) for s in others for pointer in rooms):
        return False
    for tensor, at in [read for read in reads(body) if read[0].pointer in rooms]:
        first = tensor.offset if isinstance(tensor.offset, int) else -1
        of_thread = 0
        for stride, index in zip(tensor.strides, at, strict=True):
            if index == ThreadIndex("thread") and isinstance(stride, int):
                of_thread += stride
            elif isinstance(index, Extent) and isinstance(index.size, int) and isinstance(stride, int):
                first += stride * index.size
            else:
                return False
        last = first % (OWN_BYTES * threads) + tensor.dtype.itemsize
        if of_thread != OWN_BYTES or first < 0 or last > OWN_BYTES:
            return False
    return True


def _split(body: tuple[Statement, ...]) -> tuple[list[Statement], tuple[Statement, ...]]:
    """The allocations at the start of a body, and the rest."""
    count = next((i for i, s in enumerate(body) if not isinstance(s, Alloc)), len(body))
    return [*body[:count]], body[count:]


@dataclass(frozen=True, slots=True)
class _Slice:
    """Elements that follow each other: where the first of them is, along axes that are the same for all threads."""

    at: tuple[Expr, ...]
    strides: tuple[Any, ...]
    count: int


def _sliced(every: Sequence[Read], got: Received, own: Uniform) -> _Slice:
    """The first axes of a tensor along which each block reads at one place; all of it where there are none."""
    tensor, at = every[0]
    found, left = _Slice((), (), got.count), got.count * got.dtype.itemsize
    if any(other.strides != tensor.strides for other, _ in every):
        return found
    for axis, stride in enumerate(tensor.strides):
        index = own.of(at[axis])
        if index is None or not all(own.of(other[axis]) == index for _, other in every):
            break
        if index != ZERO:
            if not isinstance(stride, int) or not 0 < stride <= left or stride % 16:
                break
            left = stride
        taken = _Slice((*found.at, index), tensor.strides[: axis + 1], left // got.dtype.itemsize)
        if not all(_is_inside(read, axis + 1, left, own) for read in every):
            break
        found = taken
    return found


def _is_inside(read: Read, axis: int, nbytes: int, own: Uniform) -> bool:
    """Whether a read that starts elsewhere than its tensor stays in a slice, along the axes from `axis` on."""
    tensor, at = read
    last = tensor.offset
    if last == 0:
        return True
    for stride, index in zip(tensor.strides[axis:], at[axis:], strict=True):
        most = own.most(index)
        if most is None or not isinstance(stride, int) or stride < 0:
            return False
        last = last + most * stride
    return isinstance(last, int) and 0 < last < nbytes


__all__ = ["START", "PartWords", "Published", "Received", "Sent", "Words"]

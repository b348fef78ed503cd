"""Messages between the parts of a persistent kernel: elements in stamped words, which need no barrier of the grid.

Every pass has words of its own, so that a word is written once in a launch. A part first receives all that it reads of
others into shared memory. Parts follow each other in the same order in all blocks, and all blocks run at the same time,
so that each word that a block waits for is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bool_, u8
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    Access,
    Alloc,
    AwaitCopies,
    AwaitPhase,
    Barrier,
    Call,
    Expr,
    Extent,
    Load,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    Name,
    Number,
    Prefetch,
    Receipt,
    Receive,
    ScaleMatrices,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    When,
    accesses,
    add,
    expand,
    minimum,
    mul,
    pointers_in,
    reads,
    within,
)
from dovetail.kernels.loops.launch_fusion.block_stages import without_copies_from_shared
from dovetail.kernels.loops.launch_fusion.composed import Renaming
from dovetail.kernels.loops.launch_fusion.shared_copies import without_shared_copies
from dovetail.kernels.loops.persistent.bodies import PASS
from dovetail.kernels.loops.persistent.passes import IN_FIRST, in_passes
from dovetail.kernels.loops.persistent.stream import IS_FIRST
from dovetail.kernels.loops.uniform import Uniform

__all__ = ["SIZES", "START", "VECTOR", "HeldFactors", "PartWords", "Published", "Received", "Sent", "Words", "held"]

ELEMENTS = 8
"""Elements of a lane of four matrices."""
MOST_WORDS = 112
"""Words of factors in the registers of a thread."""


@dataclass(frozen=True, slots=True)
class HeldFactors:
    """The products of a tile without their loads of factors that are there before the row."""

    allocations: tuple[Alloc, ...]
    loads: Loop
    rest: Loop


def held(
    loop: Statement, is_known: Callable[[Expr, str], bool], is_there: Callable[[Tensor], bool]
) -> HeldFactors | None:
    """An unrolled loop of products in two: loads of factors to registers of their own, and the rest. None where there
    are no such loads, or registers do not hold them. `is_known` tells whether an index is known before the row, given
    the variable of the loop, and `is_there` whether shared memory is filled by then."""
    if not isinstance(loop, Loop) or loop.kind != "unrolled" or not isinstance(loop.extent, Extent):
        return None
    turns = loop.extent.size
    counts: dict[str, int] = {}
    for s in loop.body:
        if isinstance(s, LoadMatrices) and is_there(s.source):
            if not all([is_known(x, loop.variable) for x in s.source_at]):
                return None
            counts[s.target.pointer] = counts.get(s.target.pointer, 0) + 1
    if not counts or not isinstance(turns, int) or turns * sum(counts.values()) * ELEMENTS // 2 > MOST_WORDS:
        return None
    step, number = Name(loop.variable), dict.fromkeys(counts, -1)

    def place(tensor: Tensor, at: tuple[Expr, ...]) -> tuple[Tensor, tuple[Expr, ...]]:
        if tensor.pointer not in counts:
            return tensor, at
        item = tensor.dtype.itemsize
        strides = (counts[tensor.pointer] * ELEMENTS * item, ELEMENTS * item, *tensor.strides)
        own = replace(tensor, pointer=f"held_{tensor.pointer}", strides=strides)
        return own, (step, Extent(number[tensor.pointer]), *at)

    loads: list[Statement] = []
    rest: list[Statement] = []
    for s in loop.body:
        match s:
            case LoadMatrices() if s.target.pointer in counts:
                number[s.target.pointer] += 1
                target, at = place(s.target, s.target_at)
                loads.append(replace(s, target=target, target_at=at))
            case MultiplyMatrices():
                left, at = place(s.left, s.left_at)
                right, right_at = place(s.right, s.right_at)
                rest.append(replace(s, left=left, left_at=at, right=right, right_at=right_at))
            case ScaleMatrices():
                source, at = place(s.source, s.source_at)
                rest.append(replace(s, source=source, source_at=at))
            case _:
                if pointers_in((s,)) & {*counts}:
                    return None  # it reads a factor where the tile had it
                rest.append(s)
    dtypes = {s.target.pointer: s.target.dtype for s in loop.body if isinstance(s, LoadMatrices)}
    allocations = [Alloc(f"held_{p}", dtypes[p], turns * n * ELEMENTS, "private") for p, n in counts.items()]
    return HeldFactors(tuple(allocations), replace(loop, body=tuple(loads)), replace(loop, body=tuple(rest)))


def loaded_ahead(
    body: tuple[Statement, ...], received: Collection[str]
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """The wait of a block's only tile for its copies, with what it then loads of them by its threads' indices, and the
    rest of the body; nothing ahead where it loads nothing. `received` is the shared memory that is filled later."""
    tiles = [at for at, s in enumerate(body) if isinstance(s, Loop) and s.kind == "block"]
    loop = body[tiles[0]] if len(tiles) == 1 else None
    if not isinstance(loop, Loop):
        return (), body
    waits = [at for at, s in enumerate(loop.body) if isinstance(s, AwaitPhase)]
    if len(waits) != 1:
        return (), body
    (first,) = waits
    filled = {*received, *[s.tensor.pointer for s in everything(body) if isinstance(s, Store)]}
    known: set[str] = set()
    for s in loop.body[first + 1 :]:
        if not isinstance(s, Set) or s.name in known or not _is_known(s.value, known, filled):
            break
        known.add(s.name)
    before = {s.name for s in everything(loop.body[:first]) if isinstance(s, Set)}
    if not known and first + 1 < len(loop.body):
        split = held(
            loop.body[first + 1],
            lambda x, variable: _is_known(x, {variable}, filled),
            lambda tensor: tensor.space == "shared" and tensor.pointer not in filled,
        )
        if split is not None:
            rest = replace(loop, body=(*loop.body[:first], split.rest, *loop.body[first + 2 :]))
            ahead = (*split.allocations, loop.body[first], split.loads)
            return ahead, (*body[: tiles[0]], rest, *body[tiles[0] + 1 :])
    if not known or known & before:
        return (), body
    end = first + 1 + len(known)
    rest = replace(loop, body=(*loop.body[:first], *loop.body[end:]))
    return loop.body[first:end], (*body[: tiles[0]], rest, *body[tiles[0] + 1 :])


def _is_known(x: Expr, known: AbstractSet[str], filled: AbstractSet[str]) -> bool:
    """Whether an expression has indices of threads, known names, and shared memory that nothing fills later."""
    match x:
        case Number() | Extent() | ThreadIndex():
            return True
        case Name(name):
            return name in known
        case Call(_, operands):
            return all([_is_known(y, known, filled) for y in operands])
        case Load(tensor, at):
            is_there = tensor.space == "shared" and tensor.pointer not in filled
            return is_there and all([_is_known(y, known, filled) for y in at])


SIZES = (2, 4)
"""Bytes of an element that can be sent."""
VECTOR = 16
"""Bytes of words that a thread loads at once."""
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
    """Whether L2 evicts words last: each is used once in a launch, and all weights go through L2 until the next."""

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
    pause: int = 0
    """Cycles after a level in which no thread looks for what that has sent."""
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
        statements = without_copies_from_shared(renaming.body(self._sending(body)))
        if not receipts:
            return statements
        got = {r.target.pointer: r.count for r in receipts}
        statements, instead = without_shared_copies(statements, sizes, got)
        allocations, statements = _split(Renaming(lambda n: n, instead).body(statements))
        is_early = all(self.received[pointer].is_before for pointer in rooms)
        # What the pass before has sent is there by the time that this one starts.
        receive = Receive(tuple(receipts), 0 if is_early else self.pause)
        ahead, statements = loaded_ahead(statements, got) if self.loads_ahead else ((), statements)
        allocations += ahead
        if isinstance(statements[0], AwaitCopies) and isinstance(statements[1], Barrier):
            # One barrier is for what this thread received and for what it copied.
            return (*allocations, receive, *statements)
        if _are_own(statements, receipts, self.threads):
            return (*allocations, receive, *statements)
        return (*allocations, receive, Barrier(), *statements)

    def rooms(self, body: tuple[Statement, ...]) -> list[Alloc]:
        """Shared memory for what a segment receives."""
        slices = self._slices(body).items()
        return [Alloc(self._room(pointer), self.received[pointer].dtype, s.count, "shared") for pointer, s in slices]

    def _room(self, pointer: str) -> str:
        return f"got_{pointer}{self.suffix}"

    def _slices(self, body: tuple[Statement, ...]) -> dict[str, _Slice]:
        """What a segment reads of each tensor that it receives: the same for all threads of a block."""
        every: dict[str, list[Access]] = {}
        for tensor, at in reads(body):
            if tensor.pointer in self.received:
                every.setdefault(tensor.pointer, []).append((tensor, at))
        own = Uniform(body, (PASS.name,))
        return {p: _sliced(accesses, self.received[p], own) for p, accesses in every.items()}

    def _sending(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        def sending(s: Statement) -> list[Statement] | None:
            if not isinstance(s, Store) or s.tensor.pointer not in self.sent:
                return None
            sent = self.sent[s.tensor.pointer]
            tensor = self.words.tensor(s.tensor.dtype, sent.first, s.tensor.strides, s.tensor.offset)
            # Loads after a word is sent are loads again: what it has is computed once.
            value = Name(f"sent_{sent.first}", s.value.dtype)
            statements: list[Statement] = [
                Set(value.name, s.value),
                Store(tensor, (add(PASS, Extent(1)), *s.at), value),
            ]
            if s.tensor.pointer in self.owned:
                statements.append(Store(self.owned[s.tensor.pointer], (ThreadIndex("thread"),), value))
            if sent.kept:
                last = Call("equal", (PASS, Extent(self.last)), bool_)
                statements.append(When(last, (Store(replace(s.tensor, pointer=sent.kept), s.at, value),)))
            return statements

        return expand(body, sending)


def _are_own(body: tuple[Statement, ...], receipts: Sequence[Receipt], threads: int) -> bool:
    """Whether each thread reads of what a block received only what it received itself, so that it waits for no other:
    vectors of 8 bytes, of which a thread has every one whose number is its own, or that and a multiple of all."""
    rooms = {r.target.pointer: r.count * r.target.dtype.itemsize for r in receipts}
    if any(nbytes % (OWN_BYTES * threads) for nbytes in rooms.values()):
        return False
    # A statement of any other kind that names that memory, in whichever field, keeps the barrier.
    others = [s for s in everything(body) if not isinstance(s, (Set, Store, Loop, When))]
    if rooms.keys() & {tensor.pointer for _, tensor, _ in accesses(part for s in others for part in within((s,)))}:
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


def _sliced(every: Sequence[Access], got: Received, own: Uniform) -> _Slice:
    """The first axes of a tensor along which each block reads at one place; all of it where there are none."""
    tensor, at = every[0]
    slice_, left = _Slice((), (), got.count), got.count * got.dtype.itemsize
    if any(other.strides != tensor.strides for other, _ in every):
        return slice_
    for axis, stride in enumerate(tensor.strides):
        index = own.of(at[axis])
        if index is None or not all(own.of(other[axis]) == index for _, other in every):
            break
        if index != ZERO:
            if not isinstance(stride, int) or not 0 < stride <= left or stride % 16:
                break
            left = stride
        taken = _Slice((*slice_.at, index), tensor.strides[: axis + 1], left // got.dtype.itemsize)
        if not all(_is_inside(read, axis + 1, left, own) for read in every):
            break
        slice_ = taken
    return slice_


def _is_inside(read: Access, axis: int, nbytes: int, own: Uniform) -> bool:
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

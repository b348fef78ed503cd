"""Sorting keys: a bitonic network in shared memory for chunks, then merge passes in global memory.

Rows of a known length take one kernel for all chunks and one for each doubling of the merged length. Where the length
is known only at run time, one block sorts a row from beginning to end, so that one compilation serves every length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.order.passes import THREADS, holds, whole
from dovetail.kernels.gpu.order.sort_keys import Key, Keys, chosen
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Barrier,
    Call,
    Expr,
    Extent,
    Kernel,
    Launch,
    Loop,
    Name,
    Set,
    Statement,
    ThreadIndex,
    When,
    add,
    minimum,
    mul,
    sizes_in,
)

Take: TypeAlias = Callable[[Expr, Expr], Key]
"""The key at a place of a row."""
_THREAD, _BLOCK = ThreadIndex("thread"), ThreadIndex("block")
_LONGEST = 32
"""Halvings of a row whose length is not known, at most."""


@dataclass(frozen=True, slots=True)
class SortPolicy:
    """Sizes of chunks and of a thread's share."""

    chunk: int = 2048
    """Keys that a block sorts in shared memory, two for each thread: a power of two."""
    merged: int = 8
    """Keys that a thread merges, a power of two."""
    lanes: int = LANES
    """Threads of a warp."""

    @staticmethod
    def on(device: GpuDevice) -> SortPolicy:
        return replace(POLICY, lanes=device.warp)


POLICY = SortPolicy()


def chunk_for(length: Size, policy: SortPolicy) -> int:
    """The keys of a chunk: no more than a row has, and two for each lane of a warp at least."""
    if not isinstance(length, int) or length >= policy.chunk:
        return policy.chunk
    return min(policy.chunk, max(2 * policy.lanes, 1 << (length - 1).bit_length()))


def shared_chunk(keys: Keys, chunk: int) -> Keys:
    """A chunk of keys in shared memory."""
    return Keys("chunk", keys.is_wide, chunk, chunk, "shared")


def launched(
    name: str, reads: Sequence[str], writes: Sequence[str], body: Sequence[Statement], blocks: Size, threads: int
) -> tuple[Kernel, Size]:
    """A kernel with a launch shape."""
    pointers = (*[n for n in dict.fromkeys(reads) if n not in writes], *writes)
    kernel = Kernel(name, pointers, tuple(writes), "tile", tuple(body), sizes=sizes_in(tuple(body)))
    return replace(kernel, launch=Launch(blocks, threads)), blocks


def bitonic(keys: Keys, count: int) -> tuple[Statement, ...]:
    """Sort keys in shared memory by a bitonic network; `count` is a power of two, and threads are half as many."""
    low, i, j, apart = Name("low"), Name("i"), Name("j"), Name("apart")
    first, a = keys.load(ZERO, i).kept("a")
    second, b = keys.load(ZERO, j).kept("b")
    rises = holds("equal", whole("bit_and", i, Name("size")), ZERO)
    swaps = Call("bit_not", (Call("bit_xor", (b.before(a), rises), bool_),), bool_)
    step: tuple[Statement, ...] = (
        Set("low", whole("bit_and", _THREAD, whole("sub", apart, ONE))),
        Set("i", add(mul(whole("sub", _THREAD, low), Extent(2)), low)),
        Set("j", add(i, apart)),
        *first,
        *second,
        When(swaps, (*keys.store(ZERO, i, b), *keys.store(ZERO, j, a))),
        Barrier(),
        Set("apart", whole("div", apart, Extent(2))),
    )
    stage: tuple[Statement, ...] = (
        Set("apart", whole("div", Name("size"), Extent(2))),
        Loop("step", add(Name("stage"), ONE), step),
        Set("size", mul(Name("size"), Extent(2))),
    )
    return Set("size", Extent(2)), Loop("stage", Extent(count.bit_length() - 1), stage)


def filled(shared: Keys, chunk: int, take: Take, row: Expr, first: Expr, length: Size) -> tuple[Statement, ...]:
    """Load a chunk of keys from a place of a row on; what is beyond the row is padding."""
    at = add(first, Name("e"))
    there = holds("less", at, Extent(length))
    inside = minimum(at, Extent(length - 1))
    key = chosen(there, take(row, inside), shared.last)
    return Loop("e", Extent(chunk), shared.store(ZERO, Name("e"), key), kind="thread"), Barrier()


def emptied(shared: Keys, chunk: int, target: Keys, row: Expr, first: Expr, length: Size) -> tuple[Statement, ...]:
    """Store a chunk of keys to a place of a row, as far as the row goes."""
    at = add(first, Name("e"))
    put = When(holds("less", at, Extent(length)), target.store(row, at, shared.load(ZERO, Name("e"))))
    return Loop("e", Extent(chunk), (put,), kind="thread"), Barrier()


def merged(
    source: Keys, target: Keys, row: Expr, width: Expr, start: Expr, length: Size, policy: SortPolicy
) -> tuple[Statement, ...]:
    """A thread's share of a pass that makes one run of two sorted runs of `width` keys each.

    It finds by bisection how many keys of the first run go before its share, then it merges key by key.
    """
    lo, mid, hi, left, right = (Name(n) for n in ("lo", "mid", "hi", "left", "right"))
    gone = Name("gone")
    half = Name("half")
    probe = (
        Set("half", whole("div", add(left, right), Extent(2))),
        Set(
            "goes",
            source.load(row, add(lo, half)).before(
                source.load(row, add(mid, whole("sub", whole("sub", gone, ONE), half)))
            ),
        ),
        Set("left", Call("where", (Name("goes", bool_), add(half, ONE), left), left.dtype)),
        Set("right", Call("where", (Name("goes", bool_), right, half), right.dtype)),
    )
    halvings = length.bit_length() if isinstance(length, int) else _LONGEST
    last = Extent(length - 1)
    sets_a, a = source.load(row, minimum(Name("i"), last)).kept("a")
    sets_b, b = source.load(row, minimum(Name("j"), last)).kept("b")
    used_up = holds("greater_equal", Name("j"), hi)
    first = Call("bit_and", (holds("less", Name("i"), mid), Call("bit_or", (used_up, a.before(b)), bool_)), bool_)
    goes = Name("goes", bool_)
    taken = (
        *sets_a,
        *sets_b,
        Set("goes", first),
        *target.store(row, add(Name("start"), Name("e")), chosen(goes, a, b)),
        Set("i", add(Name("i"), Call("cast", (goes,), left.dtype))),
        Set("j", add(Name("j"), Call("cast", (Call("bit_not", (goes,), bool_),), left.dtype))),
    )
    both = mul(width, Extent(2))
    return (
        Set("start", start),
        Set("lo", mul(whole("div", Name("start"), both), both)),
        Set("mid", minimum(add(lo, width), Extent(length))),
        Set("hi", minimum(add(lo, both), Extent(length))),
        Set("gone", whole("sub", Name("start"), lo)),
        Set("left", whole("maximum", ZERO, whole("sub", gone, whole("sub", hi, mid)))),
        Set("right", minimum(gone, whole("sub", mid, lo))),
        Loop("probe", Extent(halvings), (When(holds("less", left, right), probe),)),
        Set("i", add(lo, left)),
        Set("j", add(mid, whole("sub", gone, left))),
        Loop("e", minimum(Extent(policy.merged), whole("sub", hi, Name("start"))), taken),
    )


def sorted_keys(
    take: Take, reads: Sequence[str], keys: tuple[Keys, Keys], rows: Size, length: Size, policy: SortPolicy
) -> tuple[list[tuple[Kernel, Size]], Keys]:
    """The kernels that sort the keys of all rows, and the one of two arrays in the workspace that holds them then."""
    if not isinstance(length, int):
        return _by_block(take, reads, keys, rows, length, policy), keys[0]
    chunk = chunk_for(length, policy)
    chunks = -(-length // chunk)
    shared = shared_chunk(keys[0], chunk)
    row, part = Name("row"), Name("part")
    head = (
        Set("row", whole("div", _BLOCK, Extent(chunks))),
        Set("part", mul(whole("rem", _BLOCK, Extent(chunks)), Extent(chunk))),
    )
    body = (
        *shared.allocated(),
        *head,
        *filled(shared, chunk, take, row, part, length),
        *bitonic(shared, chunk),
        *emptied(shared, chunk, keys[0], row, part, length),
    )
    passes = [launched("sort_chunks", reads, tuple(keys[0].workspace), body, rows * chunks, chunk // 2)]
    source, target = keys
    width = chunk
    each = THREADS * policy.merged
    blocks = -(-length // each)
    while width < length:
        start = add(mul(whole("rem", _BLOCK, Extent(blocks)), Extent(each)), mul(_THREAD, Extent(policy.merged)))
        share = merged(source, target, row, Extent(width), Name("start"), length, policy)
        pass_ = (
            Set("row", whole("div", _BLOCK, Extent(blocks))),
            Set("start", start),
            When(holds("less", Name("start"), Extent(length)), share),
        )
        passes.append(
            launched("sort_merge", tuple(source.workspace), tuple(target.workspace), pass_, rows * blocks, THREADS)
        )
        source, target = target, source
        width *= 2
    return passes, source


def _by_block(
    take: Take, reads: Sequence[str], keys: tuple[Keys, Keys], rows: Size, length: Size, policy: SortPolicy
) -> list[tuple[Kernel, Size]]:
    """One block sorts a row of any length: its chunks, then merges of all of it, there and back."""
    chunk = policy.chunk
    shared = shared_chunk(keys[0], chunk)
    row, width = Name("row"), Name("width")
    turns = Loop(
        "c",
        whole("div", Extent(length + (chunk - 1)), Extent(chunk)),
        (
            Set("part", mul(Name("c"), Extent(chunk))),
            *filled(shared, chunk, take, row, Name("part"), length),
            *bitonic(shared, chunk),
            *emptied(shared, chunk, keys[0], row, Name("part"), length),
        ),
    )
    shares = whole("div", Extent(length + (policy.merged - 1)), Extent(policy.merged))

    def pass_(source: Keys, target: Keys) -> tuple[Statement, ...]:
        share = merged(source, target, row, width, mul(Name("s"), Extent(policy.merged)), length, policy)
        return Loop("s", shares, share, kind="thread"), Barrier(), Set("width", mul(width, Extent(2)))

    both = When(holds("less", width, Extent(length)), (*pass_(*keys), *pass_(keys[1], keys[0])))
    body = (
        *shared.allocated(),
        Set("row", _BLOCK),
        turns,
        Set("width", Extent(chunk)),
        Loop("turn", Extent(_LONGEST // 2), (both,)),
    )
    writes = (*keys[0].workspace, *keys[1].workspace)
    return [launched("sort_rows", reads, writes, body, rows, chunk // 2)]


__all__ = [
    "POLICY",
    "SortPolicy",
    "Take",
    "bitonic",
    "chunk_for",
    "emptied",
    "filled",
    "launched",
    "shared_chunk",
    "sorted_keys",
]

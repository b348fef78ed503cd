"""The bulk copies of a persistent kernel by a warp of its own, which computes nothing.

Threads that compute would start copies between two parts, while others wait for their words. The warp waits until the
shared memory of a copy is free, which those threads tell it through a barrier there, and starts the copies one
by one, in the order in which they are needed. It also prefetches keys. Copies of few bytes stay with the threads that
read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllocBarriers,
    Arrive,
    AwaitPhase,
    Call,
    CopyAsync,
    CopyBulk,
    ExpectBytes,
    Expr,
    Extent,
    FenceShared,
    Kernel,
    Load,
    Loop,
    Name,
    Number,
    Prefetch,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    When,
    add,
    bodies,
    mul,
    rewrite,
    with_bodies,
)
from dovetail.kernels.loops.persistent.bodies import PASS, has_bulk
from dovetail.kernels.loops.persistent.passes import in_passes

THREADS = 128
"""Of the warp that copies and of three that do nothing: registers are given to four warps at once."""
_FEW = 40
"""Registers of a thread that copies."""
_MOST = 1 << 16
"""Registers of a multiprocessor."""
_DUE = Tensor("due", i64, (i64.itemsize,), space="private")
"""The cycle before which the next copy does not start."""
PACE_BYTES = 1 << 16
"""The pace is in cycles for copies of these bytes: a power of two, as other quotients take 20 instructions."""
IS_FIRST = Call("equal", (ThreadIndex("thread"), ZERO), bool_)


def registers_of(threads: int) -> tuple[int, int] | None:
    """The registers of a thread that computes, and of one that copies; None where all have the same."""
    if threads % THREADS or threads == THREADS:
        return None
    return (_MOST - THREADS * _FEW) // threads // 8 * 8, _FEW


@dataclass(frozen=True, slots=True)
class Free:
    """When the memory of the copies after a level is free: once in each pass, or in the last one alone. That one has a
    barrier of its own: a wait there alone could take a phase of an earlier pass for its own."""

    level: int
    in_last: bool = False

    @property
    def name(self) -> str:
        return f"{'last' if self.in_last else 'free'}_{self.level}"

    def barrier(self, threads: int) -> AllocBarriers:
        """The barrier at which the threads of a block then arrive. One of them could for all, since they have waited
        for each other before. Tools that look for races follow a thread's own arrival alone, and it takes no longer."""
        return AllocBarriers(self.name, 1, threads)

    @property
    def awaited(self) -> Statement:
        phase = ZERO if self.in_last else Call("bit_and", (PASS, Extent(1)), i64)
        return AwaitPhase(self.name, ZERO, phase)

    def signaled(
        self, waiting: Sequence[tuple[SubGrid, range]], blocks: int, threads: int, passes: int
    ) -> list[Statement]:
        """Signal the warp that copies, after all threads of a block have left the level, in the blocks and passes in
        which it waits for the copies of some parts. A phase that nothing awaits would be one too many."""
        waits = [_blocks_of([part for part, runs in waiting if at in runs], blocks) for at in range(passes)]
        arrive, statements = Arrive(self.name, ZERO), list[Statement]()
        for these, several in groupby(range(passes), key=waits.__getitem__):
            runs = [*several]
            signals = [arrive] if len(these) == blocks else _in_blocks(arrive, these, blocks, threads)
            statements += in_passes(signals, range(runs[0], runs[-1] + 1), passes)
        return statements


def _blocks_of(parts: Sequence[SubGrid], count: int) -> frozenset[int]:
    """The blocks of a grid that run any of some parts."""
    return frozenset([(part.first + i) % count for part in parts for i in range(min(part.blocks, count))])


def _in_blocks(statement: Statement, those: AbstractSet[int], count: int, threads: int) -> list[Statement]:
    """A statement in some blocks of a grid, but not all of them."""
    statements: list[Statement] = []
    for first in sorted([at for at in those if (at - 1) % count not in those]):
        end = next(n for n in range(1, count) if (first + n) % count not in those)
        statements.append(SubGrid(end, threads, first, (statement,)))
    return statements


def in_first_pass(copies: Sequence[Statement]) -> list[Statement]:
    return [When(Call("equal", (PASS, ZERO), bool_), tuple(copies))] if copies else []


def of_warp(body: Sequence[Statement], free: Free | None = None) -> list[Statement]:
    """The bulk copies of a body, which one thread starts, one by one, once their memory is free.

    Blocks wait for that only where they copy: threads that compute then wait for these copies, so that they cannot come
    to the same barrier twice before the warp has seen the first time.
    """
    statements: list[Statement] = []
    for s in body:
        if isinstance(s, (FenceShared, Set)):
            statements.append(s)
        if not any([isinstance(x, (CopyBulk, ExpectBytes)) for x in everything((s,))]):
            continue
        match s:
            case SubGrid():
                first = [] if free is None else [free.awaited]
                statements.append(replace(s, threads=LANES, body=(*first, *of_warp(s.body))))
            case Loop(kind="thread"):
                statements.append(When(IS_FIRST, (replace(s, kind="serial", rolled=True),)))
            case When():
                statements.append(replace(s, body=tuple(of_warp(s.body, free))))
            case _:
                statements.append(s)
    return statements


def of_others(body: Sequence[Statement]) -> list[Statement]:
    """Return the copies that stay with the threads that compute."""
    statements: list[Statement] = []
    for s in body:
        if bodies(s):
            s = with_bodies(s, of_others)
            if any(isinstance(x, CopyAsync) or bodies(x) for inner in bodies(s) for x in inner):
                statements.append(s)
        elif not isinstance(s, (CopyBulk, ExpectBytes, FenceShared)):
            statements.append(s)
    return statements if any(not isinstance(s, Set) for s in statements) else []


def prefetched(part: SubGrid) -> SubGrid:
    """What the first lanes of all warps of a part prefetch, by the warp that copies: it does one after the other."""
    at = Name("of_warp")
    one: Mapping[str, Expr] = {"warp": at, "lane": ZERO}
    body = rewrite(part.body, lambda x: one.get(x.kind, x) if isinstance(x, ThreadIndex) else None)
    loop = Loop(at.name, Extent(part.threads // LANES), body, rolled=True)
    return replace(part, threads=LANES, body=(When(IS_FIRST, (loop,)),))


def in_turn(stream: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Copies of which few are on their way at a time: before the last ones of a part start, those of the part before
    have arrived. Memory brings what is on its way in any order, and blocks need the part before first."""
    statements: list[Statement] = []
    before: str | None = None
    for s in stream:
        copies = [i for i, x in enumerate(s.body) if has_bulk([x])] if isinstance(s, SubGrid) else []
        if isinstance(s, SubGrid) and before is not None and len(copies) > 1:
            arrived = AwaitPhase(before, ZERO, Call("bit_and", (PASS, Extent(1)), i64))
            s = replace(s, body=(*s.body[: copies[-1]], arrived, *s.body[copies[-1] :]))
        expected = [x.barrier for x in everything([s]) if isinstance(x, ExpectBytes)] if copies else []
        before = expected[-1] if expected else None
        statements.append(s)
    return tuple(statements)


def paced(kernel: Kernel, bytes_per_cycle: float) -> Kernel:
    """Copies that start no faster than memory brings them: words of other blocks would wait for those on their way."""
    if not kernel.stream or not bytes_per_cycle:
        return kernel
    pace = round(PACE_BYTES / bytes_per_cycle)
    unset = When(Call("equal", (PASS, ZERO), bool_), (Store(_DUE, (ZERO,), Number(0, i64)),))
    stream = (Alloc(_DUE.pointer, i64, 1, "private"), unset, *_with_pace(kernel.stream, pace))
    return replace(kernel, stream=stream)


def _with_pace(body: Sequence[Statement], pace: int) -> list[Statement]:
    """A body whose copies wait: 64 KB take `pace` cycles."""
    statements: list[Statement] = []
    for s in body:
        s = with_bodies(s, lambda body: tuple(_with_pace(body, pace)))
        if isinstance(s, (CopyBulk, Prefetch)):
            nbytes = s.nbytes if isinstance(s, Prefetch) else Extent(s.nbytes)
            cycles = Call("div", (mul(nbytes, Extent(pace)), Extent(PACE_BYTES)), i64)
            now = Call("clock_after", (Load(_DUE, (ZERO,)),), i64)
            statements.append(Store(_DUE, (ZERO,), add(now, cycles)))
        statements.append(s)
    return statements


def waits_once(body: Sequence[Statement]) -> tuple[AwaitPhase, ...]:
    """The waits for copies that arrive once in a pass; the stages of a ring have as many phases as tiles."""
    every = [s for s in everything(body) if isinstance(s, AwaitPhase)]
    return tuple([s for s in every if isinstance(s.slot, Extent) and s.turns == 1])


__all__ = [
    "IS_FIRST",
    "PACE_BYTES",
    "THREADS",
    "Free",
    "in_first_pass",
    "in_turn",
    "of_others",
    "of_warp",
    "paced",
    "prefetched",
    "registers_of",
    "waits_once",
]

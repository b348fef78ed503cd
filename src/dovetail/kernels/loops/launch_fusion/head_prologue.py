"""An attention of few queries as the prologue of the product that reads it: each block attends for its rows.

Heads go to warps, with tiles of their own in shared memory, so that a warp waits for its own lanes alone. What all
heads give is where products read rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.analysis import everything, with_rooms
from dovetail.kernels.loops.gpu_schedule import tile_of
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AwaitCopies,
    Barrier,
    Call,
    Done,
    Expr,
    Extent,
    Kernel,
    Loop,
    Name,
    Rewriting,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
    accesses,
    add,
    minimum,
    mul,
    needs,
    walk,
    with_fields,
)
from dovetail.kernels.loops.launch_fusion.composed import Renaming
from dovetail.kernels.loops.launch_fusion.row_prologue import Filling
from dovetail.kernels.timings.record import GemvTimings

ROWS = 16
"""Queries of a warp."""
_STATEMENTS = frozenset(["threads", "lanes", "barriers", "copies", "matrices"])
"""What is in an attention that a warp of a larger block can run."""


@dataclass(frozen=True, slots=True)
class HeadKernel:
    """An attention whose blocks are a warp each, for 16 queries of a head."""

    allocations: tuple[Alloc, ...]
    """Shared memory of a block."""
    private: tuple[Alloc, ...]
    body: tuple[Statement, ...]
    tile: str
    """The number of the block in `body`."""
    heads: int
    blocks: int
    """Blocks of queries of a head."""
    pointers: tuple[str, ...]
    written: tuple[str, ...]
    copied_bytes: int

    @staticmethod
    def of(kernel: Kernel, heads: int, queries: int) -> HeadKernel | None:
        """A scheduled attention; None where its blocks are anything else."""
        launch, schedule, blocks = kernel.launch, kernel.schedule, -(-queries // ROWS)
        if launch is None or launch.block != launch.warp or kernel.early or kernel.opening or launch.cluster > 1:
            return None
        if schedule is None or schedule.by != "block" or not isinstance(schedule.tiles, int):
            return None
        allocations, tile = kernel.body[:-1], tile_of(kernel.body, schedule)
        every = [*everything(kernel.body)]
        if not needs(kernel.body) <= _STATEMENTS or schedule.tiles % (heads * blocks):
            return None
        if any([isinstance(s, Loop) and s.kind == "thread" for s in every]):
            return None
        if any([isinstance(s, Store) and s.tensor.pointer in kernel.written for s in tile.body]):
            return None  # results of queries that are none are stored under a condition
        shared = tuple([s for s in allocations if isinstance(s, Alloc) and s.space == "shared"])
        private = tuple([s for s in allocations if isinstance(s, Alloc) and s.space == "private"])
        if len(shared) + len(private) != len(allocations) or not all([_has_slots(kernel.body, a) for a in shared]):
            return None
        copied = sum([a.count * a.dtype.itemsize for a in shared])
        return HeadKernel(
            shared, private, _inlined(tile.body), tile.number, heads, blocks, kernel.pointers, kernel.written, copied
        )


def _has_slots(body: Sequence[Statement], alloc: Alloc) -> bool:
    """Whether the first index of shared memory is that of one of several equal tiles."""
    own = {tensor for _, tensor, _ in accesses(walk(body)) if tensor.pointer == alloc.pointer}
    return all([t.offset == 0 and t.strides[0] == alloc.count * alloc.dtype.itemsize for t in own])


def _inlined(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """A body without loops of one turn."""
    statements: list[Statement] = []
    for s in body:
        if isinstance(s, Loop) and s.kind == "serial" and s.extent == Extent(1):
            statements += [Set(s.variable, ZERO), *_inlined(s.body)]
        else:
            statements.append(s)
    return tuple(statements)


def with_head_prologue(
    kernel: Kernel,
    before: HeadKernel,
    read: str,
    pointers: Mapping[str, str],
    *,
    result: str,
    room: str,
    timings: GemvTimings,
) -> Kernel | None:
    """A kernel whose blocks each compute the attention that their tile reads through the pointer `read`.

    `before` writes it as its `result`; here it goes to the shared memory `room`, which the kernel would fill with it.
    `pointers` says what the pointers of `before` are called in the whole kernel. None where the kernel does not fill
    that memory in one place, or has tiles of other rows.
    """
    filling, launch = Filling.of(kernel, read, room), kernel.launch
    if filling is None or launch is None or filling.lines != ROWS:
        return None
    warps = launch.block // launch.warp
    turns = -(-before.heads // warps)
    copies: list[Statement] = []
    works: list[tuple[Statement, ...]] = []
    for turn in range(turns):
        first, work = _head(before, turn, warps, pointers, filling.rows, pointers[result])
        copies += first
        works.append(work)
    # Heads of a warp take turns, so that one computes while another waits.
    each = [*copies, *(s for several in zip(*works, strict=True) for s in several)]
    read_too = [pointers[n] for n in before.pointers if n not in before.written]
    copies_take = before.heads * before.copied_bytes * (1 / timings.attention_bytes)
    cycles = timings.attention + turns * timings.attention_head + copies_take
    filled = filling.filled(each, read_too, (), cycles)
    rooms = [replace(a, pointer=f"{a.pointer}_heads", count=a.count * turns * warps) for a in before.allocations]
    # Copies that start early find their memory where the first allocations are.
    body = (*filled.body[:-1], *rooms, filled.body[-1])
    return replace(filled, body=body, launch=filled.launch and with_rooms(filled.launch, body))


def _head(
    before: HeadKernel, turn: int, warps: int, pointers: Mapping[str, str], rows: Tensor, result: str
) -> tuple[list[Statement], tuple[Statement, ...]]:
    """The copies of a head of each warp, and what follows them."""
    number = add(Extent(turn * warps), ThreadIndex("warp"))
    own = Name(f"head_number{turn}")
    of_tile = Call("div", (Name("top"), Extent(ROWS)), i64)
    lead, block = (Call(op, (of_tile, Extent(before.blocks)), i64) for op in ("div", "rem"))
    head = add(mul(lead, Extent(before.heads)), minimum(own, Extent(before.heads - 1)))
    tile = add(mul(head, Extent(before.blocks)), block)
    names = {**pointers, **{a.pointer: f"{a.pointer}_heads" for a in before.allocations}}
    names |= {a.pointer: f"{a.pointer}_heads{turn}" for a in before.private}

    def local(name: str) -> str:
        return f"{name}_heads{turn}"

    renamed = Renaming(local, names)
    body = renamed.body(before.body)
    shared = frozenset([f"{a.pointer}_heads" for a in before.allocations])
    # The last warps may have no head: they compute one again, and store nothing.
    guard = None if before.heads % warps == 0 else Call("less", (own, Extent(before.heads)), bool_)
    of_warp = _OfWarp(own, shared, rows, result, Name(local("top")), guard).body(body)
    wait = next((i for i, s in enumerate(of_warp) if isinstance(s, AwaitCopies)), 0)
    start = [Set(own.name, number), *renamed.body(before.private), Set(local(before.tile), tile)]
    return [*start, *of_warp[:wait]], of_warp[wait:]


@dataclass(frozen=True, slots=True)
class _OfWarp(Rewriting):
    """The body of a block as one warp of a larger block has it."""

    own: Expr
    """Its tiles in shared memory."""
    shared: frozenset[str]
    rows: Tensor
    result: str
    top: Expr
    """The first of its queries."""
    guard: Expr | None
    done: Done = field(default_factory=dict[int, tuple[Any, Any]])

    def changed(self, part: Any) -> Any:
        if isinstance(part, ThreadIndex):
            return {"thread": ThreadIndex("lane"), "warp": ZERO}.get(part.kind, part)
        if isinstance(part, Barrier):
            return WarpBarrier()
        if isinstance(part, Store) and part.tensor.pointer == self.result:
            return self._stored(part)
        if isinstance(part, When) and self.guard is not None and self._stores(part):
            condition = Call("bit_and", (self.of(part.condition), self.guard), bool_)
            return When(condition, self.of(part.body))
        inner = self.inside(part)
        for role, tensor, at in accesses((inner,)):
            if tensor.pointer in self.shared and role.at:
                first, *rest = at
                inner = with_fields(inner, {role.at: (add(first, self.own), *rest)})
        return inner

    def _stores(self, part: When) -> bool:
        return any([isinstance(s, Store) and s.tensor.pointer == self.result for s in part.body])

    def _stored(self, store: Store) -> Statement:
        """A result where products read rows: those of a head are neighbours."""
        *_, head, query, column = [self.of(x) for x in store.at]
        *_, width, _, item = store.tensor.strides
        assert isinstance(width, int) and isinstance(item, int), "it was checked"
        place = Call("sub", (query, self.top), i64), add(mul(head, Extent(width // item)), column)
        return Store(self.rows, place, self.of(store.value))


__all__ = ["ROWS", "HeadKernel", "with_head_prologue"]

"""GPU scheduling: which block, warp, thread or lane runs each iteration of a kernel's parallel loops.

A kernel family gives one body for each tile, in which `parallel` loops say what may be shared. The scheduler turns it
into a whole kernel with a launch shape. Elementwise tiles go to blocks, their iterations to threads: lanes next to each
other take elements next to each other, and accesses are coalesced. A row that is reduced goes to a warp where it is
short, to a block where it is long, and to one thread where it is tiny. Rows whose neighbours in memory belong to
different rows go to the lanes of a warp, and the warps of the block share each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from dovetail.dataclass import dataclass
from dovetail.errors import GraphError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_, i64, whole_range
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.analysis import (
    Reduced,
    elements,
    everything,
    extent,
    parallel,
    reads_what_it_wrote,
    reductions,
)
from dovetail.kernels.loops.ir import (
    Alloc,
    AllReduce,
    Barrier,
    Call,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Schedule,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    expand,
    minimum,
    mul,
    sizes_in,
    with_bodies,
)
from dovetail.kernels.loops.row_registers import in_registers

_FEW_ROWS = 32
"""Rows such as those of a token's heads, which become stages of other kernels. They were not measured in registers."""


@dataclass(frozen=True, slots=True)
class GpuShape:
    """How blocks are shaped: data of a target."""

    lanes: int = LANES
    """Threads of a warp."""
    threads: int = 256
    """Threads of a block that shares elementwise work."""
    row_warps: int = 4
    """Warps of a block in which each has a row of its own."""
    thread_elements: int = 16
    """Rows up to this length go to one thread each."""
    warp_elements: int = 1024
    """Rows up to this length go to one warp each."""
    unrolled: int = 32
    """Elements of a row that one thread keeps in registers; longer shares are loops."""
    column_warps: int = 16
    """Warps of a block that share a bundle of rows, at most; a power of two."""
    most_threads: int = 1024
    row_threads: int | None = None
    """Threads of a block that shares a long row; None where its length decides."""
    groups_in_flight: int = 4
    """Groups of neighbours of a long row that a thread loads before it waits; of single elements four times as many."""
    row_registers: bool = False
    """Whether results of rows are in registers until a group is known, also where rows are few."""


def schedule(kernel: Kernel, tiles: Size, shape: GpuShape) -> Kernel:
    """The kernel as one GPU runs it: all tiles, with a launch shape."""
    loops = list(parallel(kernel.body))
    nested = [inner for loop in loops for inner in parallel(loop.body)]
    if not loops or reads_what_it_wrote(kernel):
        return _by_thread(kernel, tiles, shape)
    if nested:
        return _by_column(kernel, tiles, shape, nested)
    if not any(reductions(loop.body) for loop in loops):
        # A bundle of rows has one for each lane.
        bundled = any(isinstance(loop.extent, Name) for loop in loops)
        return _shared(kernel, tiles, shape, shape.lanes if bundled else shape.threads)
    counts = [elements(loop) for loop in loops]
    known = [n for n in counts if n is not None]
    if len(known) < len(counts):
        return _shared(kernel, tiles, shape, shape.threads)
    longest = max(known)
    if longest <= shape.thread_elements:
        return _by_thread(kernel, tiles, shape)
    if longest <= shape.warp_elements:
        return _by_warp(kernel, tiles, shape)
    if shape.row_threads is not None:
        return _shared(kernel, tiles, shape, shape.row_threads)
    groups = max(extent(loop) or 1 for loop in loops)
    threads = min(shape.most_threads, max(2 * shape.lanes, 1 << (groups // 4 - 1).bit_length()))
    return _shared(kernel, tiles, shape, threads)


@dataclass(frozen=True, slots=True)
class TileBody:
    """What a thread does for a tile that its block, its warp or it has for itself."""

    number: str
    """The name of the tile's number in the body."""
    body: tuple[Statement, ...]


def over_tiles(schedule: Schedule, tile: TileBody) -> tuple[Statement, ...]:
    """All tiles, by the threads that have them."""
    if schedule.by == "block":
        return (Loop(tile.number, Extent(schedule.tiles), tile.body, kind="block"),)
    own = add(mul(Name("chunk"), Extent(schedule.each)), ThreadIndex(schedule.by))
    inside = When(Call("less", (Name(tile.number), Extent(schedule.tiles)), bool_), tile.body)
    return (Loop("chunk", Extent(_blocks(schedule)), (Set(tile.number, own), inside), kind="block"),)


def tile_of(body: Sequence[Statement], schedule: Schedule) -> TileBody:
    """The tile of a scheduled body, which ends with `over_tiles`."""
    loop = body[-1]
    assert isinstance(loop, Loop) and loop.kind == "block", "the schedule is that of the body"
    if schedule.by == "block":
        return TileBody(loop.variable, loop.body)
    own, inside = loop.body
    assert isinstance(own, Set) and isinstance(inside, When), "the schedule is that of the body"
    return TileBody(own.name, inside.body)


def _blocks(schedule: Schedule) -> Size:
    return (schedule.tiles + (schedule.each - 1)) // schedule.each


def _finished(kernel: Kernel, body: tuple[Statement, ...], schedule: Schedule, threads: int, warp: int) -> Kernel:
    whole, launch = over_tiles(schedule, TileBody(kernel.tile, body)), Launch(_blocks(schedule), threads, warp=warp)
    return replace(kernel, body=whole, sizes=sizes_in(whole), launch=launch, schedule=schedule)


def _by_thread(kernel: Kernel, tiles: Size, shape: GpuShape) -> Kernel:
    """A tile for each thread; its loops are unrolled where they are short."""
    threads = shape.lanes * shape.row_warps
    body = tuple([_serial(s, shape) for s in kernel.body])
    return _finished(kernel, body, Schedule("thread", tiles, threads), threads, shape.lanes)


def _serial(statement: Statement, shape: GpuShape) -> Statement:
    match statement:
        case Loop():
            body = tuple([_serial(s, shape) for s in statement.body])
            if statement.kind != "parallel":
                return replace(statement, body=body)
            count = elements(statement)
            short = count is not None and count <= shape.unrolled
            turn = Set("turn", Name(statement.variable))
            return replace(statement, body=(turn, *body), kind="unrolled" if short else "serial")
        case _:
            return with_bodies(statement, lambda body: [_serial(s, shape) for s in body])


def _by_warp(kernel: Kernel, tiles: Size, shape: GpuShape) -> Kernel:
    """A tile for each warp; its lanes share the loops."""
    warps = shape.row_warps
    body = _Team(shape, "lane", shape.lanes).statements(kernel.body)
    if shape.row_registers or not isinstance(tiles, int) or tiles > _FEW_ROWS:
        counts = [extent(loop) for loop in parallel(kernel.body)]
        body = in_registers(body, max([-(-count // shape.lanes) for count in counts if count is not None]))
    return _finished(kernel, body, Schedule("warp", tiles, warps), warps * shape.lanes, shape.lanes)


def _shared(kernel: Kernel, tiles: Size, shape: GpuShape, threads: int) -> Kernel:
    """A tile for each block; its threads share the loops."""
    body = _Team(shape, "thread", threads).statements(kernel.body)
    return _finished(kernel, body, Schedule("block", tiles), threads, shape.lanes)


def _by_column(kernel: Kernel, tiles: Size, shape: GpuShape, nested: Sequence[Loop]) -> Kernel:
    """A bundle of rows for each block: a row for each lane, and the warps share its loops."""
    counts = [extent(loop) for loop in nested]
    longest = max([n for n in counts if n is not None], default=0)
    warps = min(shape.column_warps, 1 << max(0, (longest // 8).bit_length() - 1))
    warps = shape.column_warps if None in counts else warps
    team = _Team(shape, "warp", warps)
    statements: list[Statement] = []
    for statement in kernel.body:
        if isinstance(statement, Loop) and statement.kind == "parallel":
            last = Call("sub", (statement.extent, Extent(1)), i64)
            statements.append(Set("in_rows", Call("less", (ThreadIndex("lane"), statement.extent), bool_)))
            statements.append(Set(statement.variable, minimum(ThreadIndex("lane"), last)))
            statements += replace(team, guard=Name("in_rows", bool_)).statements(statement.body)
        else:
            statements.append(statement)
    return _finished(kernel, tuple(statements), Schedule("block", tiles), warps * shape.lanes, shape.lanes)


@dataclass(frozen=True, slots=True)
class _Team:
    """The threads that share a tile: the lanes of a warp, the threads of a block, or its warps, a row for each lane."""

    shape: GpuShape
    kind: Literal["lane", "thread", "warp"]
    size: int
    guard: Name | None = None
    """What must hold for a thread to store anything."""

    @property
    def first(self) -> Expr:
        """Whether this is the one that stores what all of them know."""
        is_first = Call("equal", (ThreadIndex(self.kind), Extent(0)), bool_)
        return is_first if self.guard is None else Call("bit_and", (is_first, self.guard), bool_)

    def statements(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        scheduled: list[Statement] = []
        for statement in body:
            match statement:
                case Loop(kind="parallel"):
                    scheduled += self.distributed(statement)
                case Store():
                    scheduled.append(When(self.first, (statement,)))
                case Alloc(space="private"):
                    # A thread has at most one group of neighbours more than its even share.
                    scheduled.append(replace(statement, count=statement.count // self.size + 8))
                case Loop():
                    scheduled.append(statement)
                case _:
                    scheduled.append(with_bodies(statement, self.statements))
        return tuple(scheduled)

    def distributed(self, loop: Loop) -> list[Statement]:
        """A loop whose iterations the team shares, and the results of its reductions, which all of them then know."""
        reduced = reductions(loop.body)
        body = loop.body if self.guard is None else _guarded(loop.body, self.guard)
        groups, count = extent(loop), elements(loop)
        share = None if groups is None else -(-groups // self.size)
        if groups is None or count is None or share is None or share * (count // max(1, groups)) > self.shape.unrolled:
            return [*self.in_rounds(loop, body), *self.combined(reduced)]
        scheduled: list[Statement] = []
        whole, rest = divmod(groups, self.size)
        own = add(mul(Name("turn"), Extent(self.size)), ThreadIndex(self.kind))
        if whole:
            step = Set(loop.variable, own)
            scheduled.append(Loop("turn", Extent(whole), (step, *body), reassociate=loop.reassociate, kind="unrolled"))
        if rest:
            # All threads load, the last ones again what another has, so that registers hold a row between its loops.
            scheduled += [
                Set("turn", Extent(whole)),
                Set("own", own),
                Set("inside", Call("less", (Name("own"), Extent(groups)), bool_)),
                Set(loop.variable, minimum(Name("own"), Extent(groups - 1))),
                *_predicated(body, Name("inside", bool_), {r.name for r in reduced}),
            ]
        return [*scheduled, *self.combined(reduced)]

    def in_rounds(self, loop: Loop, body: tuple[Statement, ...]) -> list[Statement]:
        """A long loop. One that only reduces loads several groups before it waits for the first."""
        if not reductions(body) or any(isinstance(s, Store) for s in everything(body)):
            return [replace(loop, body=body, kind=self.kind)]
        wide = any(isinstance(s, Loop) and s.kind == "unrolled" for s in body)
        groups = self.shape.groups_in_flight if wide else 4 * self.shape.groups_in_flight
        each = Extent(self.size * groups)
        rounds = Call("div", (loop.extent, each), i64)
        whole = mul(Name("rounds"), each)
        first = add(mul(Name("round"), each), ThreadIndex(self.kind))
        step = Set(loop.variable, add(Name("first_group"), mul(Name("turn"), Extent(self.size))))
        turns = Loop("turn", Extent(groups), (step, *body), reassociate=loop.reassociate, kind="unrolled")
        left = Set(loop.variable, add(Name("grouped"), Name("left")))
        return [
            Set("rounds", rounds),
            Loop("round", Name("rounds"), (Set("first_group", first), turns)),
            Set("grouped", whole),
            Loop(
                "left",
                Call("sub", (loop.extent, Name("grouped")), i64),
                (left, *body),
                reassociate=loop.reassociate,
                kind=self.kind,
            ),
        ]

    def combined(self, reduced: Sequence[Reduced]) -> list[Statement]:
        """What each thread reduced, combined over the team."""
        if not reduced:
            return []
        lanes = [AllReduce(r.name, r.op, r.dtype) for r in reduced]
        match self.kind:
            case "lane":
                return [*lanes]
            case "thread":
                return [*lanes, *self._over_warps(reduced)]
            case "warp":
                return self._over_rows(reduced)

    def _over_warps(self, reduced: Sequence[Reduced]) -> list[Statement]:
        """Every warp stores its own through shared memory, and combines all of them."""
        count = self.size // self.shape.lanes
        lane, warp = ThreadIndex("lane"), ThreadIndex("warp")
        rooms = [self._room(i, r, self.shape.lanes) for i, r in enumerate(reduced)]
        stores = tuple(Store(t, (warp,), Name(r.name, r.dtype)) for t, r in zip(rooms, reduced, strict=True))
        statements: list[Statement] = [*self._allocated(rooms, self.shape.lanes)]
        statements += [When(Call("equal", (lane, Extent(0)), bool_), stores), Barrier()]
        if count & (count - 1) == 0:
            # Groups of as many lanes each have all of them: fewer exchanges than a whole warp needs.
            for room, r in zip(rooms, reduced, strict=True):
                kept = Load(room, (Call("rem", (lane, Extent(count)), i64),))
                statements += [Set(r.name, kept), AllReduce(r.name, r.op, r.dtype, count)]
            return [*statements, Barrier()]
        there = Call("less", (lane, Extent(count)), bool_)
        index = minimum(lane, Extent(count - 1))
        for room, r in zip(rooms, reduced, strict=True):
            kept = Call("where", (there, Load(room, (index,)), _identity(r)), r.dtype)
            statements += [Set(r.name, kept), AllReduce(r.name, r.op, r.dtype)]
        return [*statements, Barrier()]

    def _over_rows(self, reduced: Sequence[Reduced]) -> list[Statement]:
        """Every warp stores its share of each row in shared memory, and half of the warps add those of the others."""
        if self.size == 1:
            return []
        lane, warp = ThreadIndex("lane"), ThreadIndex("warp")
        lanes = self.shape.lanes
        rooms = [self._room(i, r, lanes) for i, r in enumerate(reduced)]
        statements: list[Statement] = [*self._allocated(rooms, self.size * lanes)]
        here = add(mul(warp, Extent(lanes)), lane)
        statements += [Store(t, (here,), Name(r.name, r.dtype)) for t, r in zip(rooms, reduced, strict=True)]
        statements.append(Barrier())
        distance = self.size // 2
        while distance:
            there = add(mul(add(warp, Extent(distance)), Extent(lanes)), lane)
            takes = [
                Store(t, (here,), Call(r.op, (Load(t, (here,)), Load(t, (there,))), r.dtype))
                for t, r in zip(rooms, reduced, strict=True)
            ]
            statements += [When(Call("less", (warp, Extent(distance)), bool_), tuple(takes)), Barrier()]
            distance //= 2
        for room, r in zip(rooms, reduced, strict=True):
            statements.append(Set(r.name, Load(room, (lane,))))
        return [*statements, Barrier()]

    def _room(self, index: int, r: Reduced, count: int) -> Tensor:
        return Tensor(f"shared_{r.dtype.name}_{index}", r.dtype, (r.dtype.itemsize,), space="shared")

    def _allocated(self, rooms: Sequence[Tensor], count: int) -> list[Alloc]:
        return [Alloc(room.pointer, room.dtype, count, "shared") for room in rooms]


def _identity(r: Reduced) -> Number:
    """Return the identity of a reduction."""
    low, high = (float("-inf"), float("inf")) if r.dtype.is_float else whole_range(r.dtype)
    extremes = {"maximum": low, "minimum": high, "fold_maximum": low, "fold_minimum": high}
    if r.dtype.is_float:
        whole = {"add": 0.0, "mul": 1.0, **extremes}
    else:
        whole = {"add": 0, "mul": 1, **extremes, "bit_or": 0, "bit_and": 1 if r.dtype is bool_ else -1}
    if r.op not in whole:
        raise GraphError(f"{r.op} of {r.dtype.name} is reduced over threads", hint="reduce by a sum or an extreme")
    return Number(whole[r.op], r.dtype)


def _guarded(body: Sequence[Statement], guard: Expr) -> tuple[Statement, ...]:
    """A body that stores only where a condition holds."""
    return _predicated(body, guard, ())


def _predicated(body: Sequence[Statement], inside: Expr, reduced: Sequence[str] | set[str]) -> tuple[Statement, ...]:
    """A body that changes nothing where a condition does not hold: neither memory nor what is reduced."""

    def predicated(statement: Statement) -> list[Statement] | None:
        match statement:
            case Store(tensor=Tensor(space="global")):
                return [When(inside, (statement,))]
            case Set(name, value) if name in reduced:
                return [Set(name, Call("where", (inside, value, Name(name, value.dtype)), value.dtype))]
            case _:
                return None

    return expand(body, predicated)


__all__ = ["GpuShape", "TileBody", "over_tiles", "schedule", "tile_of"]

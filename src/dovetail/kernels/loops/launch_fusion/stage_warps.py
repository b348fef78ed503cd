"""Stages of a block whose rows are each for one warp: from stage to stage a warp waits for itself alone.

A stage often reads of earlier ones only what has its own index along some axis, such as the rows of a head that are
normed, then rotated, then appended to a cache. A warp then takes a row through all of these stages, while other warps
have other rows, and the block waits once, after all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.gpu_schedule import TileBody, tile_of
from dovetail.kernels.loops.ir import (
    Barrier,
    Call,
    Expr,
    Extent,
    Loop,
    Name,
    Schedule,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    mul,
    reads,
    walk,
)
from dovetail.kernels.loops.launch_fusion.stage_narrowing import Body, Index, narrowed
from dovetail.kernels.loops.uniform import Uniform, number_of

_WARP = ThreadIndex("warp")


@dataclass(frozen=True, slots=True)
class StageBody:
    """A stage of a block."""

    body: Body
    index: Index | None
    """What is an index along the rows that a block needs, where that is known."""
    after: frozenset[int]
    """The numbers of the stages before it that it waits for."""
    schedule: Schedule | None
    """Which threads have its tiles."""

    @property
    def written(self) -> set[str]:
        return {s.tensor.pointer for s in everything(self.body) if isinstance(s, Store) and s.at}


def by_warps(stages: Sequence[StageBody], threads: int, lanes: int) -> Body | None:
    """All stages, the rows of each in some warps; None where it is not known that warps need not wait for others."""
    warps = threads // lanes
    for number, stage in enumerate(stages):
        if stage.index is None or stage.index.count > warps:
            return None
        if not all(_is_by_row(stages[earlier], stage) for earlier in stage.after):
            return None
        if any(stage.written & other.written for other in stages[:number]):
            return None
    statements: list[Statement] = []
    first = 0
    for chain in _chains(stages):
        own = [stages[number] for number in chain]
        count = max([stage.index.count for stage in own if stage.index is not None])
        first = 0 if first + count > warps else first
        row = Call("sub", (_WARP, Extent(first)), i64) if first else _WARP
        bodies = [_by_row(stage, row, lanes) for stage in own]
        known = [body for body in bodies if body is not None]
        if len(known) < len(bodies):
            return None
        first += count
        inside = [s for body in known for s in (*body, WarpBarrier())][:-1]
        statements.append(When(_is_between(row, count), tuple(inside)))
    return tuple(statements)


def _is_between(row: Expr, count: int) -> Expr:
    some = Call("less", (row, Extent(count)), bool_)
    return some if row is _WARP else Call("bit_and", (Call("less", (Extent(-1), row), bool_), some), bool_)


def _chains(stages: Sequence[StageBody]) -> list[list[int]]:
    """The numbers of stages that wait for each other, together."""
    chains: list[list[int]] = []
    for number, stage in enumerate(stages):
        joined = [chain for chain in chains if stage.after & {*chain}]
        chains = [chain for chain in chains if chain not in joined]
        chains.append(sorted([number, *(n for chain in joined for n in chain)]))
    return chains


def _is_by_row(earlier: StageBody, stage: StageBody) -> bool:
    """Whether a stage reads of an earlier one, in shared memory, only what has its own index, and nothing else is
    between them."""
    if earlier.index is None or stage.index is None:
        return False
    if (earlier.index.count, earlier.index.slice) != (stage.index.count, stage.index.slice):
        return False
    written = earlier.written
    if stage.written & {tensor.pointer for tensor, _ in reads(earlier.body)}:
        return False
    stores = [s for s in everything(earlier.body) if isinstance(s, Store) and s.at]
    rows = {s.tensor.pointer: _row_bytes(s.tensor, s.at, earlier) for s in stores}
    read = [(tensor, at) for tensor, at in reads(stage.body) if tensor.pointer in written]
    is_shared = all(s.tensor.space == "shared" for s in stores)
    whole = all(_row_bytes(s.tensor, s.at, earlier) == rows[s.tensor.pointer] for s in stores)
    same = all(_row_bytes(tensor, at, stage) == rows[tensor.pointer] is not None for tensor, at in read)
    return is_shared and bool(read) and whole and same


def _row_bytes(tensor: Tensor, at: tuple[Expr, ...], stage: StageBody) -> int | None:
    """The bytes from row to row of what is read or written at the index of a stage, and stays in that row."""
    assert stage.index is not None, "it was checked"
    axes = [axis for axis, x in enumerate(at) if isinstance(x, Name) and x.name == stage.index.name]
    row = tensor.strides[axes[0]] if len(axes) == 1 else None
    if not isinstance(row, int) or row <= 0 or not isinstance(tensor.offset, int):
        return None
    if tensor.offset == 0:
        return row
    own, last = Uniform(stage.body), tensor.offset + tensor.dtype.itemsize
    for axis, (stride, x) in enumerate(zip(tensor.strides, at, strict=True)):
        most = 0 if axis == axes[0] or stride == 0 else own.most(x)
        if most is None or not isinstance(stride, int):
            return None
        last += most * stride
    return row if tensor.offset > 0 and last <= row else None


def _by_row(stage: StageBody, row: Expr, lanes: int) -> Body | None:
    """A stage for one row of the slice of its block, by a warp; None where its loops are others."""
    assert stage.index is not None, "it was checked"
    index = replace(stage.index, row=row, lanes=lanes)
    statements: list[Statement] = []
    schedule, body = stage.schedule, stage.body
    of_rows = None
    if schedule is not None and schedule.by == "warp":
        of_rows = _of_rows(tile_of(body, schedule), schedule.tiles, index)
    for s in body if of_rows is None else body[:-1]:
        statements += narrowed((s,), index)
    statements += of_rows or ()
    every = [*everything(statements)]
    loops = [s for s in every if isinstance(s, Loop) and s.kind not in ("block", "serial", "unrolled", "lane")]
    kinds = _kinds(statements)
    waits = any(isinstance(s, Barrier) for s in every)
    return None if loops or waits or kinds - {"lane", "block"} - _kinds((row,)) else tuple(statements)


def _of_rows(tile: TileBody, count: Size, index: Index) -> tuple[Statement, ...] | None:
    """The tile of a stage whose warps have a row each, for the row of a warp; None where its index is no row."""
    sets = [s for s in tile.body if isinstance(s, Set) and s.name == index.name]
    if len(sets) != 1 or not isinstance(count, int):
        return None
    if any([number_of(sets[0].value, {tile.number: i}) != i for i in range(count)]):
        return None
    assert index.row is not None, "it is for a row"
    own = add(mul(index.slice, Extent(index.count)), index.row)
    return (Set(tile.number, own), *narrowed(tile.body, index))


def _kinds(parts: Sequence[Any]) -> set[str]:
    """Which indices of threads are in statements or expressions."""
    return {x.kind for x in walk(parts) if isinstance(x, ThreadIndex)}


__all__ = ["StageBody", "by_warps"]

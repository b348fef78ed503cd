"""Results of an attention that go through shared memory of each warp, so that a thread writes 16 bytes of a row.

A lane has pairs of columns: written where they are, four lanes fill half of a sector of memory.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.ir.dtype import i64
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.lane_rows import FRAGMENT_ROWS, LaneRow
from dovetail.kernels.gpu.attention.sources import AttendSources
from dovetail.kernels.gpu.attention.tile import AttendTile
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, less, remainder
from dovetail.kernels.gpu.gemm.tile import CHUNK, WARP_ROWS
from dovetail.kernels.loops.ir import (
    Alloc,
    Call,
    Expr,
    Extent,
    Load,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    mul,
)
from dovetail.ops.view import quotient

_STAGED = "staged"


def are_staged(sources: AttendSources, tile: AttendTile) -> bool:
    """Whether a block of one warpgroup writes rows whose results are adjacent and aligned."""
    *apart, last = sources.problem.strides["y"]
    nbytes = CHUNK * sources.dtype.itemsize
    steps = (*apart, sources.aligned)
    return tile.overlaps and last == sources.dtype.itemsize and all(quotient(s, nbytes) is not None for s in steps)


def staged_allocated(tile: AttendTile) -> Alloc:
    return Alloc(_STAGED, tile.dtype, tile.rows * (tile.dv + CHUNK), "shared")


def staged_written(tile: AttendTile, results: Callable[[LaneRow], list[tuple[Expr, Expr]]]) -> list[Statement]:
    """The results of a warp, which `results` tells for a row of each lane: columns and what they have."""
    item, warp = tile.dtype.itemsize, ThreadIndex("warp")
    pitch = (tile.dv + CHUNK) * item
    room = Tensor(_STAGED, tile.dtype, (WARP_ROWS * pitch, pitch, item), space="shared")
    found: list[Statement] = []
    for half in FRAGMENT_ROWS:
        row = add(divided(LANE, 4), Extent(8 * half.number))
        found += [Store(room, (warp, row, column), value) for column, value in results(half)]
    a, groups = tile.problem, tile.dv // CHUNK
    target = Tensor("y", tile.dtype, a.strides["y"])
    found += [WarpBarrier(), Set("first_query", Call("sub", (Name(FRAGMENT_ROWS[0].query), divided(LANE, 4)), i64))]
    for turn in range(WARP_ROWS * groups // LANES):
        own = add(LANE, Extent(turn * LANES))
        line, first = divided(own, groups), mul(remainder(own, groups), Extent(CHUNK))
        query = Name(f"staged_query{turn}")
        stores: list[Statement] = []
        for e in range(CHUNK):
            column = add(first, Extent(e))
            stores.append(Store(target, (*tile.lead, query, column), Load(room, (warp, line, column))))
        found.append(Set(query.name, add(Name("first_query"), line)))
        found.append(When(less(query, Extent(a.queries)), tuple(stores)))
    return [*found, WarpBarrier()]


__all__ = ["are_staged", "staged_allocated", "staged_written"]

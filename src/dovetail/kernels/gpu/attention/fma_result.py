"""The results of an attention without tensor cores: weighted sums over their totals, or what is left to combine."""

from __future__ import annotations

from dovetail.ir.dtype import bool_, f32
from dovetail.kernels.gpu.attention.fma_tile import (
    ACROSS,
    by_lane,
    columns_of,
    neighbours_of,
    sums_of,
)
from dovetail.kernels.gpu.attention.result import inverse_of
from dovetail.kernels.gpu.attention.tile import AttendTile, f32_name, times
from dovetail.kernels.gpu.gemm.fragments import LANE, less
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Load,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    add,
    mul,
)


def fma_written(tile: AttendTile) -> list[Statement]:
    """What a block does with its sums."""
    found: list[Statement] = []
    for row in tile.lane_rows:
        stores = _result(tile, row.number) if tile.parts == 1 else _left_over(tile, row.number)
        found.append(When(less(Name(row.query), Extent(tile.problem.queries)), tuple(stores)))
    return found


def _result(tile: AttendTile, number: int) -> list[Statement]:
    """The results of a query."""
    a, row = tile.problem, tile.lane_rows[number]
    target = by_lane(Tensor("y", f32, a.strides["y"]), tile)
    found: list[Statement] = [Set("inverse", inverse_of(tile, f32_name(row.total)))]
    for n, column in enumerate(columns_of(tile)):
        value = times(Load(sums_of(tile), (Extent(number), Extent(n))), f32_name("inverse"))
        store = Store(target, (*tile.lead, Name(row.query), *column), value)
        found.append(store if _fits(tile, n) else When(less(_index(tile, column), Extent(a.dv)), (store,)))
    return found


def _fits(tile: AttendTile, number: int) -> bool:
    """Whether the result has a column in all lanes."""
    group = ACROSS * neighbours_of(tile)
    return (number // neighbours_of(tile) + 1) * group <= tile.problem.dv


def _index(tile: AttendTile, column: tuple[Expr, ...]) -> Expr:
    """The number of a column."""
    (group, lane, neighbour), width = column, neighbours_of(tile)
    return add(add(mul(group, Extent(ACROSS * width)), mul(lane, Extent(width))), neighbour)


def _left_over(tile: AttendTile, number: int) -> list[Statement]:
    """What a block has of a query, in the workspace: sums, the largest score and the total."""
    row, target = tile.lane_rows[number], by_lane(tile.partial, tile)
    at = (*tile.lead, Name(row.query), Name("part"))
    found: list[Statement] = [
        Store(target, (*at, *column), Load(sums_of(tile), (Extent(number), Extent(n))))
        for n, column in enumerate(columns_of(tile))
    ]
    kept = (row.most, row.total)
    own = [Store(tile.partial, (*at, Extent(tile.dv + n)), f32_name(name)) for n, name in enumerate(kept)]
    first = Call("less", (LANE, Extent(2)), bool_)
    return [*found, When(first, tuple(own))]


__all__ = ["fma_written"]

"""Results of each warp through shared memory of its own: the sums of a chunk go there, and results come out, in vectors
where these are aligned, else in lines of a warp.

Operands of the epilogue are loaded two chunks ahead, those of the first two before the products: a warp has few others
to wait with.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.dataclass import dataclass
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, remainder
from dovetail.kernels.gpu.gemm.scaled_rows import WrittenSquares
from dovetail.kernels.gpu.gemm.tile import CHUNK, WARP_ROWS
from dovetail.kernels.gpu.gemm.tiled import Element, Producer
from dovetail.kernels.gpu.hoisted import Hoisted
from dovetail.kernels.loops.ir import (
    Expr,
    Extent,
    Load,
    Name,
    Set,
    Statement,
    Store,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    mul,
)

AHEAD = 2
"""Chunks of results whose operands are loaded while others are computed."""


@dataclass(frozen=True, slots=True)
class WarpResults:
    """The results of the warps of a block, chunk by chunk."""

    producer: Producer
    streams: int
    written: Callable[[Element, Expr, Expr], list[Store]]
    """The stores of an element at a row and a column of the result."""
    inside: Callable[[Expr, Expr], Expr]
    """Whether a row and a column are those of the result."""
    each: int = CHUNK
    """Neighbours of a thread in a line; 1 where lines of the result are not aligned."""
    squares: WrittenSquares | None = None
    """Squares for a norm after this product; None where there is none."""

    def statements(self) -> tuple[list[Statement], list[Statement]]:
        """What comes before the sums, and what comes after them."""
        producer, squares = self.producer, self.squares
        groups = producer.width // self.each
        turns = range(WARP_ROWS * groups // LANES)
        lines = [divided(add(LANE, Extent(turn * LANES)), groups) for turn in turns]
        group = mul(remainder(LANE, groups), Extent(self.each))
        ahead: list[Statement] = [Set("first", add(Name("side"), group))]
        loads: list[list[Statement]] = []
        stores: list[list[Statement]] = []
        for number, chunk in enumerate(producer.chunks):
            first = add(Name("first"), Extent(chunk.column))
            top = add(Name("top"), chunk.row)
            loads.append([])
            stores.append([])
            for turn in turns:
                row = add(top, lines[turn])
                hoisted = Hoisted(f"given{number % AHEAD}_{turn}_")
                results: list[Store] = []
                for e in range(self.each):
                    column = add(group, Extent(e))
                    places = [(ThreadIndex("warp"), Extent(s), lines[turn], column) for s in range(self.streams)]
                    sums = tuple([Load(producer.staged, at) for at in places])
                    element = Element(lines[turn], column, sums)
                    results += map(hoisted.store, self.written(element, row, add(first, Extent(e))))
                inside = self.inside(row, first)
                each = results if squares is None else squares.stored(turn, results, hoisted)
                loads[-1] += [When(inside, tuple(hoisted.sets))] if hoisted.sets else []
                stores[-1].append(When(inside, tuple(each)))
        statements: list[Statement] = [] if squares is None else squares.start(turns)
        for number, chunk in enumerate(producer.chunks):
            ahead += loads[number] if number < AHEAD else []
            for element in chunk.elements:
                for s, value in enumerate(element.sums):
                    at = (ThreadIndex("warp"), Extent(s), element.row, element.column)
                    statements.append(Store(producer.staged, at, value))
            statements += [WarpBarrier(), *stores[number], WarpBarrier()]
            statements += loads[number + AHEAD] if number + AHEAD < len(loads) else []
        if squares is not None:
            rows = [add(add(Name("top"), producer.chunks[0].row), line) for line in lines]
            inside = [self.inside(row, Name("side")) for row in rows]
            statements += [s for turn in turns for s in squares.end(turn, rows[turn], inside[turn], groups)]
        return ahead, statements


__all__ = ["WarpResults"]

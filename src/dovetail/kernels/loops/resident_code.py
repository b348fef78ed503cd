"""The code of a part of a resident kernel before the part needs it.

A pass has more code than the instruction cache of a multiprocessor holds, so that each part fetches its own anew, line
by line, from a cache that many multiprocessors share. While a block waits for words, its first warp runs the products
of the part once without them: their code is there when the words are. What it computes is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.ir.dtype import bool_
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AwaitPhase,
    Barrier,
    Call,
    Expr,
    Extent,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    Name,
    Receive,
    ScaleMatrices,
    Set,
    Statement,
    Store,
    SubGrid,
    ThreadIndex,
    When,
)

TURN = "turn_of_code"
"""The variable of the loop around a part: 0 where its code alone is wanted."""
_PURE = (Set, When, Loop, Store, LoadMatrices, MultiplyMatrices, ScaleMatrices, Alloc)
"""What the first warp may run without words, as long as it stores to its own memory or to that of its block."""


def with_code_first(part: Statement) -> Statement:
    """A part whose first warp runs its products once before the block receives; others stay as they are."""
    if not isinstance(part, SubGrid):
        return part
    allocations = [s for s in part.body if isinstance(s, Alloc)]
    rest = part.body[len(allocations) :]
    match rest:
        case (Receive() as receive, Barrier(), Loop(kind="block") as tile):
            halves = _cut(tile.body)
        case _:
            return part
    if halves is None:
        return part
    products, others = halves
    is_real = Call("equal", (Name(TURN), Extent(1)), bool_)
    is_first = Call("equal", (ThreadIndex("warp"), ZERO), bool_)
    takes_part = Call("bit_or", (is_real, is_first), bool_)
    body: list[Statement] = [
        When(is_real, (receive, Barrier())),
        replace(tile, body=(When(takes_part, _awaiting(products, is_real)), When(is_real, others))),
    ]
    return replace(part, body=(*allocations, Loop(TURN, Extent(2), tuple(body), rolled=True)))


def _cut(body: Sequence[Statement]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]] | None:
    """What comes before the first barrier of a tile, and the rest; None where a warp may not run the first alone."""
    at = next((i for i, s in enumerate(body) if isinstance(s, Barrier)), None)
    if at is None:
        return None
    first, rest = tuple(body[:at]), tuple(body[at:])
    every = [*everything(first)]
    is_pure = all([isinstance(s, (*_PURE, AwaitPhase)) for s in every])
    is_own = all([s.tensor.space in ("shared", "private") for s in every if isinstance(s, Store)])
    has_products = any([isinstance(s, MultiplyMatrices) for s in every])
    again = any([isinstance(s, (MultiplyMatrices, AwaitPhase)) for s in everything(rest)])
    return (first, rest) if is_pure and is_own and has_products and not again else None


def _awaiting(body: Sequence[Statement], is_real: Expr) -> tuple[Statement, ...]:
    """Statements that wait for weights in the second turn alone."""
    return tuple([When(is_real, (s,)) if isinstance(s, AwaitPhase) else s for s in body])


__all__ = ["TURN", "with_code_first"]

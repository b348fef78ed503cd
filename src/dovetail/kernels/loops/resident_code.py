"""The code of a part of a resident kernel before the part needs it.

A pass has more code than the instruction cache of a multiprocessor holds, so that each part fetches its own anew, line
by line, from a cache that many multiprocessors share. While a block waits for words, some of its warps run the part
once without them: its products one warp of each scheduler, which has a cache of its own, and what follows them the warp
that has results. The code is there when the words are. They wait for weights, which are there by then, and load these in
place of rows too, since other warps write rows meanwhile. What they compute goes to words that no block receives, and
nothing else is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
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
"""What one warp may run without words."""
_IS_REAL = Call("equal", (Name(TURN), Extent(1)), bool_)
_LANES = 32
_SCHEDULERS = 4
"""Of a multiprocessor: warps take turns."""


@dataclass(frozen=True, slots=True)
class Still:
    """Shared memory that a part may read once its copies have arrived, before it has received anything."""

    copied: frozenset[str]
    """The allocations that copies of the part fill."""
    nbytes: Mapping[str, int]
    """Bytes of each allocation."""

    def of(self, body: Sequence[Statement]) -> Still | None:
        """What a body awaits; None where it loads more bytes of another allocation than there are of these."""
        sources = {s.source.pointer for s in everything(body) if isinstance(s, LoadMatrices)}
        own, awaits = (
            replace(self, copied=self.copied & sources),
            any(isinstance(s, AwaitPhase) for s in everything(body)),
        )
        if not own.copied or not awaits:
            return None
        return own if all([self.nbytes[p] <= self.nbytes[own._largest] for p in sources]) else None

    @property
    def _largest(self) -> str:
        return max(self.copied, key=self.nbytes.__getitem__)

    def loaded(self, load: LoadMatrices) -> LoadMatrices:
        """A load of what was copied, in the first turn; in the second one it is as it was."""
        if load.source.pointer in self.copied:
            return load
        return replace(load, condition=_IS_REAL, otherwise=self._largest)


def with_code_first(part: Statement, passes: int, still: Still) -> Statement:
    """A part of products, some of whose warps run it once before the block receives; others stay as they are.

    Words of one more pass than there are take what is not used.
    """
    if not isinstance(part, SubGrid):
        return part
    allocations = [s for s in part.body if isinstance(s, Alloc)]
    rest = part.body[len(allocations) :]
    match rest:
        case (Receive() as receive, Barrier(), Loop(kind="block") as tile):
            halves = _cut(tile.body)
        case _:
            return part
    own = still.of(tile.body)
    if halves is None or own is None:
        return part
    products, results = (_for_both(half, passes, own) for half in halves)
    # The first threads have results.
    of_products, of_results = _with_warps(min(1, part.threads // _LANES - 1), _SCHEDULERS), _with_warps(0, 1)
    # Scalars that are set before the products are for what follows them too.
    count = next(i for i, s in enumerate(products) if not _only_sets(s))
    inner = When(of_products, products[count:]), When(_IS_REAL, (Barrier(),)), When(of_results, results)
    whole = (*products[:count], *inner)
    body = When(_IS_REAL, (receive, Barrier())), replace(tile, body=whole)
    return replace(part, body=(*allocations, Loop(TURN, Extent(2), body, rolled=True)))


def _only_sets(statement: Statement) -> bool:
    return isinstance(statement, Set) or (isinstance(statement, When) and all(map(_only_sets, statement.body)))


def _with_warps(first: int, count: int) -> Expr:
    """All warps in the second turn, and some in the first."""
    own = ThreadIndex("warp")
    after = Call("bit_not", (Call("less", (own, Extent(first)), bool_),), bool_)
    some = Call("bit_and", (after, Call("less", (own, Extent(first + count)), bool_)), bool_)
    return Call("bit_or", (_IS_REAL, some), bool_)


def _cut(body: Sequence[Statement]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]] | None:
    """What comes before the only barrier of a tile, and after it; None where one warp may not run them alone."""
    at = next((i for i, s in enumerate(body) if isinstance(s, Barrier)), None)
    if at is None:
        return None
    first, rest = tuple(body[:at]), tuple(body[at + 1 :])
    is_pure = all([isinstance(s, (*_PURE, AwaitPhase)) for s in everything((*first, *rest))])
    return (first, rest) if is_pure and any([isinstance(s, MultiplyMatrices) for s in everything(first)]) else None


def _for_both(body: Sequence[Statement], passes: int, still: Still) -> tuple[Statement, ...]:
    """Statements that receive, and send or write results, in the second turn alone."""
    found: list[Statement] = []
    for s in body:
        if isinstance(s, (Loop, When)):
            s = replace(s, body=_for_both(s.body, passes, still))
        elif isinstance(s, Store) and s.tensor.space == "stamped":
            # A condition around it would take what computes the value with it.
            place = Call("where", (_IS_REAL, s.at[0], Extent(passes + 1)), i64)
            s = replace(s, at=(place, *s.at[1:]))
        elif isinstance(s, LoadMatrices):
            s = still.loaded(s)
        elif isinstance(s, Store) and s.tensor.space != "private":
            s = When(_IS_REAL, (s,))
        found.append(s)
    return tuple(found)


__all__ = ["TURN", "Still", "with_code_first"]

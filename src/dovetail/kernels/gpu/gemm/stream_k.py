"""Stream-K: the rounds of all tiles in equal spans, one for each block, wherever a tile ends.

Where tiles are no multiple of the blocks that a device holds, most of it has no work while the last of them are
computed. With spans all blocks end together. A block that has a part of a tile leaves its sums to a second kernel,
which adds up the parts of each such tile in the order of k and writes results: no block waits for another one, and
every run adds in the same order. A thread leaves its sums where the thread of its number reads them, so that those of
a warp are neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bool_, i64
from dovetail.kernels.gpu.gemm.fragments import both, less
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    minimum,
    mul,
)

FIRST_ROUND, ROUNDS = Name("first_round"), Name("rounds")
"""The first round that a block has of its tile, and how many."""
_SPAN, _START, _END, _PIECE, _FIRST, _TILE = (Name(n) for n in ("span", "from", "until", "piece", "first_tile", "tile"))
_BOUNDARY, _BLOCK, _TOP, _LAST, _MORE = (Name(n) for n in ("boundary", "block", "top_round", "last_block", "more"))


@dataclass(frozen=True, slots=True)
class Spans:
    """The rounds of all tiles, and the blocks that share them."""

    tiles: int
    rounds: int
    """Of a tile."""
    blocks: int

    @property
    def every(self) -> int:
        """The rounds of all tiles."""
        return self.tiles * self.rounds

    @property
    def longest(self) -> int:
        """The rounds of a span, at most."""
        return -(-self.every // self.blocks)

    @property
    def parts(self) -> int:
        """Parts of tiles, at most: a boundary of spans inside a tile makes one more of it."""
        return min(self.tiles, self.blocks - 1) + self.blocks - 1

    def shared(self, sums: Sequence[Load], threads: int, tile: Sequence[Statement], whole: Sequence[Statement]) -> Loop:
        """What a block does: for each tile of its span the sums of some rounds, and results where these are all of
        them."""
        left = [Store(self._left(sums, threads), (self._slot, Extent(n), _THREAD), x) for n, x in enumerate(sums)]
        top = mul(_TILE, Extent(self.rounds))
        ends = minimum(_minus(_END, top), Extent(self.rounds))
        body = (
            Set(_TILE.name, add(_FIRST, _PIECE)),
            Set(FIRST_ROUND.name, Call("maximum", (_minus(_START, top), ZERO), i64)),
            Set(ROUNDS.name, _minus(ends, FIRST_ROUND)),
            *tile,
            When(_is("equal", ROUNDS, Extent(self.rounds)), tuple(whole)),
            When(less(ROUNDS, Extent(self.rounds)), tuple(left)),
        )
        last = Call("div", (_minus(_END, ONE), Extent(self.rounds)), i64)
        pieces = add(_minus(last, _FIRST), ONE)
        span = (
            Set(_START.name, self._start(_SPAN)),
            Set(_END.name, self._start(add(_SPAN, ONE))),
            Set(_FIRST.name, Call("div", (_START, Extent(self.rounds)), i64)),
            Loop(_PIECE.name, pieces, body, rolled=True),
        )
        return Loop(_SPAN.name, Extent(self.blocks), span, kind="block")

    def added(self, sums: Sequence[Load], threads: int, place: Sequence[Statement], whole: Sequence[Statement]) -> Loop:
        """What a block of the second kernel does: it adds up the parts of a tile at the first boundary inside it."""
        left = self._left(sums, threads)

        def part(slot: Expr) -> list[Expr]:
            return [Load(left, (slot, Extent(n), _THREAD)) for n in range(len(sums))]

        before = self._start(_minus(_BLOCK, ONE))
        # The block before the boundary began with this tile, or with one before it.
        first = Call("where", (less(Name("before"), _TOP), ONE, ZERO), i64)
        first = add(mul(_minus(_BLOCK, ONE), Extent(2)), first)
        end = mul(add(_TOP, Extent(self.rounds)), Extent(self.blocks))
        other = mul(add(_BLOCK, _MORE), Extent(2))
        more = [Store(x.tensor, x.at, Call("add", (x, y), x.dtype)) for x, y in zip(sums, part(other), strict=True)]
        body = (
            *(Store(x.tensor, x.at, y) for x, y in zip(sums, part(first), strict=True)),
            Set(_LAST.name, Call("div", (_minus(end, ONE), Extent(self.every)), i64)),
            Loop(_MORE.name, add(_minus(_LAST, _BLOCK), ONE), tuple(more), rolled=True),
            *place,
            *whole,
        )
        is_inside = less(_TOP, _START)
        is_first = _is("less_equal", Name("before"), _TOP)
        boundary = (
            Set(_BLOCK.name, add(_BOUNDARY, ONE)),
            Set(_START.name, self._start(_BLOCK)),
            Set("before", before),
            Set(_TILE.name, Call("div", (_START, Extent(self.rounds)), i64)),
            Set(_TOP.name, mul(_TILE, Extent(self.rounds))),
            When(both(is_inside, is_first), body),
        )
        return Loop(_BOUNDARY.name, Extent(self.blocks - 1), boundary, kind="block")

    def nbytes(self, sums: int, threads: int, dtype: DType) -> int:
        """The workspace: two places for each block."""
        return 2 * self.blocks * sums * threads * dtype.itemsize

    def _start(self, block: Expr) -> Expr:
        """The first round of a block, counted through all tiles."""
        return Call("div", (mul(block, Extent(self.every)), Extent(self.blocks)), i64)

    @property
    def _slot(self) -> Expr:
        """Where a block leaves its part of a tile: in its first place for its first tile, else in the second one."""
        later = Call("where", (_is("equal", _PIECE, ZERO), ZERO, ONE), i64)
        return add(mul(_SPAN, Extent(2)), later)

    @staticmethod
    def _left(sums: Sequence[Load], threads: int) -> Tensor:
        """Sums in the workspace: places, sums of a thread, threads."""
        dtype = sums[0].dtype
        line = threads * dtype.itemsize
        return Tensor(PARTIAL, dtype, (len(sums) * line, line, dtype.itemsize))


PARTIAL = "partial0"
"""The pointer to the workspace."""
_THREAD = ThreadIndex("thread")


def _minus(x: Expr, y: Expr) -> Expr:
    return Call("sub", (x, y), i64)


def _is(op: str, x: Expr, y: Expr) -> Expr:
    return Call(op, (x, y), bool_)


__all__ = ["FIRST_ROUND", "PARTIAL", "ROUNDS", "Spans"]

"""Stream-K: the K steps of all tiles in equal spans, one for each block, wherever a tile ends.

Where tiles are no multiple of the blocks that a device holds, most of it has no work while the last of them are
computed. With spans all blocks end together. A block that has a part of a tile leaves its accumulators to a second
kernel, which adds up the parts of each such tile in the order of k and writes results: no block waits for another one,
and every run adds in the same order. A thread leaves its accumulators where the thread of its number reads them, so
that those of a warp are neighbours in memory.

All columns are added up in one order: tiles with the same rows are cut at the same K steps. So columns of weights that
are equal have results that are equal to the bit, as with every other engine, and a softmax of equal logits is even.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bool_, i64
from dovetail.kernels.gpu.gemm.fragments import both, divided, less, remainder
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
_SPAN, _START, _END, _PIECE, _FIRST, _BAND = (Name(n) for n in ("span", "from", "until", "piece", "first_band", "band"))
_GROUP, _COLUMN = Name("group"), Name("column_tile")
_BOUNDARY, _TOP, _LAST, _MORE = (Name(n) for n in ("boundary", "top_round", "last_group", "more"))


@dataclass(frozen=True, slots=True)
class Spans:
    """The K steps of all tiles, and the blocks that share them.

    Tiles with the same rows are a band. A group of blocks, one for each tile of a band, has a span of the K steps of
    all bands.
    """

    bands: int
    """Tiles below each other, of all products of a batch."""
    down: int
    """Those of one product."""
    across: int
    """Tiles of a band."""
    rounds: int
    """K steps of a tile."""
    groups: int

    @property
    def blocks(self) -> int:
        return self.groups * self.across

    @property
    def every(self) -> int:
        """The K steps of all bands."""
        return self.bands * self.rounds

    @property
    def longest(self) -> int:
        """The K steps of a span, at most."""
        return -(-self.every // self.groups)

    @property
    def boundaries(self) -> int:
        """Ends of spans that another span follows, in all tiles of a band."""
        return (self.groups - 1) * self.across

    @property
    def parts(self) -> int:
        """Parts of tiles, at most: a boundary of spans inside a tile makes one more of it."""
        return (min(self.bands, self.groups - 1) + self.groups - 1) * self.across

    def shared(self, sums: Sequence[Load], threads: int, tile: Sequence[Statement], whole: Sequence[Statement]) -> Loop:
        """Return what a block does: for each tile of its span the sums of some K steps, and results where these are
        all of them."""
        left = [Store(self._left(sums, threads), (self._slot, Extent(n), _THREAD), x) for n, x in enumerate(sums)]
        top = mul(_BAND, Extent(self.rounds))
        ends = minimum(_minus(_END, top), Extent(self.rounds))
        body = (
            Set(_BAND.name, add(_FIRST, _PIECE)),
            self._tile(),
            Set(FIRST_ROUND.name, Call("maximum", (_minus(_START, top), ZERO), i64)),
            Set(ROUNDS.name, _minus(ends, FIRST_ROUND)),
            *tile,
            When(_is("equal", ROUNDS, Extent(self.rounds)), tuple(whole)),
            When(less(ROUNDS, Extent(self.rounds)), tuple(left)),
        )
        last = Call("div", (_minus(_END, ONE), Extent(self.rounds)), i64)
        pieces = add(_minus(last, _FIRST), ONE)
        span = (
            *self._place(_SPAN),
            Set(_START.name, self._start(_GROUP)),
            Set(_END.name, self._start(add(_GROUP, ONE))),
            Set(_FIRST.name, Call("div", (_START, Extent(self.rounds)), i64)),
            Loop(_PIECE.name, pieces, body, rolled=True),
        )
        return Loop(_SPAN.name, Extent(self.blocks), span, kind="block")

    def added(self, sums: Sequence[Load], threads: int, place: Sequence[Statement], whole: Sequence[Statement]) -> Loop:
        """What a block of the second kernel does: it adds up the parts of a tile at the first boundary inside it."""
        left = self._left(sums, threads)

        def part(slot: Expr) -> list[Expr]:
            return [Load(left, (slot, Extent(n), _THREAD)) for n in range(len(sums))]

        before = self._start(_minus(_GROUP, ONE))
        # The block before the boundary began with this tile, or with one before it.
        first = Call("where", (less(Name("before"), _TOP), ONE, ZERO), i64)
        first = add(self._slots(_minus(_GROUP, ONE)), first)
        end = mul(add(_TOP, Extent(self.rounds)), Extent(self.groups))
        other = self._slots(add(_GROUP, _MORE))
        more = [Store(x.tensor, x.at, Call("add", (x, y), x.dtype)) for x, y in zip(sums, part(other), strict=True)]
        body = (
            *(Store(x.tensor, x.at, y) for x, y in zip(sums, part(first), strict=True)),
            Set(_LAST.name, Call("div", (_minus(end, ONE), Extent(self.every)), i64)),
            Loop(_MORE.name, add(_minus(_LAST, _GROUP), ONE), tuple(more), rolled=True),
            *place,
            *whole,
        )
        is_inside = less(_TOP, _START)
        is_first = _is("less_equal", Name("before"), _TOP)
        boundary = (
            *self._place(add(_BOUNDARY, Extent(self.across))),
            Set(_START.name, self._start(_GROUP)),
            Set("before", before),
            Set(_BAND.name, Call("div", (_START, Extent(self.rounds)), i64)),
            self._tile(),
            Set(_TOP.name, mul(_BAND, Extent(self.rounds))),
            When(both(is_inside, is_first), body),
        )
        return Loop(_BOUNDARY.name, Extent(self.boundaries), boundary, kind="block")

    def nbytes(self, sums: int, threads: int, dtype: DType) -> int:
        """The workspace: two places for each block."""
        return 2 * self.blocks * sums * threads * dtype.itemsize

    def _place(self, block: Expr) -> tuple[Set, Set]:
        """Set the group of a block, and which tile of a band it has."""
        return Set(_GROUP.name, divided(block, self.across)), Set(_COLUMN.name, remainder(block, self.across))

    def _tile(self) -> Set:
        """Set the number of a tile, which counts down a product, then across, then through the batch."""
        product = divided(_BAND, self.down) if self.bands > self.down else ZERO
        strip = remainder(_BAND, self.down) if self.bands > self.down else _BAND
        side = add(mul(product, Extent(self.across)), _COLUMN)
        return Set("tile", add(mul(side, Extent(self.down)), strip))

    def _start(self, group: Expr) -> Expr:
        """Return the first K step of a group, counted through all bands."""
        return Call("div", (mul(group, Extent(self.every)), Extent(self.groups)), i64)

    def _slots(self, group: Expr) -> Expr:
        """Return the first of two places where a block of a group leaves parts of tiles."""
        return mul(add(mul(group, Extent(self.across)), _COLUMN), Extent(2))

    @property
    def _slot(self) -> Expr:
        """Where a block leaves its part of a tile: in its first place for its first tile, else in the second one."""
        later = Call("where", (_is("equal", _PIECE, ZERO), ZERO, ONE), i64)
        return add(self._slots(_GROUP), later)

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

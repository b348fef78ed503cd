"""Rounds of an attention by a warpgroup: the scores of the next round are multiplied while weights are computed.

So keys come two rounds ahead of their weights and values one, and one barrier in a round is enough: what is copied
after it goes where everything was read before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.gpu.attention.products import multiplied_keys, summed
from dovetail.kernels.gpu.attention.seen import SeenAhead
from dovetail.kernels.gpu.attention.shifts import Shifts
from dovetail.kernels.gpu.attention.softmax import weighted
from dovetail.kernels.gpu.attention.tile import AttendTile
from dovetail.kernels.gpu.gemm.fragments import private, remainder, unrolled
from dovetail.kernels.gpu.gemm.shared_tiles import SharedTile
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Alloc,
    AwaitCopies,
    AwaitProducts,
    Barrier,
    CommitCopies,
    Expr,
    Extent,
    FenceShared,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    add,
)

_NEXT = "next_scores"
TILES = 2
"""Rounds of keys, and of values, that shared memory has room for."""


def scores_allocated(block: AttendTile) -> list[Alloc]:
    """Registers for the scores of the next round."""
    return [Alloc(_NEXT, f32, block.warp_keys // 2, "private")] if block.overlaps else []


@dataclass(frozen=True, slots=True)
class GroupRounds:
    """How the warpgroup of a block goes through the keys."""

    block: AttendTile
    keys: SharedTile
    values: SharedTile
    loaded: Callable[[str, Expr, Expr], list[Statement]]
    """Copies of the keys ("k") or values ("v") of a round to a tile."""

    def _copied(self, name: str, number: Expr) -> list[Statement]:
        return self.loaded(name, number, remainder(number, TILES))

    def first(self, queries: Sequence[Statement], fragments: Statement) -> list[Statement]:
        """Queries, what is copied before the first round, and its scores."""
        few = self.block.few_rounds
        copies = [*queries, *self._copied("k", ZERO), CommitCopies()]
        copies += [*self._copied("v", ZERO), *(() if few == 1 else self._copied("k", ONE)), CommitCopies()]
        shifts = Shifts(self.block)
        ahead = [*shifts.loaded(ZERO), *(SeenAhead(self.block).first() if self.block.sees_ahead else ())]
        if few > 1:
            copies += [*self._copied("v", ONE), CommitCopies()]
        arrive = [AwaitCopies(max(1, few)), FenceShared(), Barrier()]
        return [*copies, *ahead, *shifts.kept(ZERO), *arrive, *self._first_scores(fragments)]

    def _first_scores(self, fragments: Statement) -> list[Statement]:
        return [fragments, *multiplied_keys(self.block, self.keys, "scores", ZERO), self._done("scores")]

    def later(self, fragments: Statement) -> list[Statement]:
        """Further queries, which were copied during rounds of those before, and the scores of their first round."""
        return [AwaitCopies(0), Barrier(), *self._first_scores(fragments)]

    def _done(self, name: str) -> Statement:
        return AwaitProducts(private(name, f32, 1), self.block.warp_keys)

    def rounds(self, count: Expr) -> list[Statement]:
        """Weights and sums of each round, and the scores of the one after it."""
        if self.block.few_rounds:
            return [*self.few_rounds(0, ()), Barrier()]
        now, later, after = Name("round"), Name("later"), Name("after")
        start: list[Statement] = [Set("later", add(now, ONE)), Set("after", add(now, Extent(2)))]
        start += [Set("stage", remainder(now, TILES)), AwaitCopies(0), FenceShared(), Barrier()]
        keys, values = self._copied("k", after), self._copied("v", later)
        scores = multiplied_keys(self.block, self.keys, _NEXT, remainder(later, TILES))
        work = [*weighted(self.block), *summed(self.block, self.values, "row")]
        shifts, moved = Shifts(self.block), self._moved()
        start += shifts.loaded(later)
        if self.block.sees_ahead:
            seen = SeenAhead(self.block)
            copies = [*seen.where(after, keys), *seen.where(later, values), CommitCopies(), *seen.loaded()]
            each = [*start, *copies, *scores, *seen.where(now, work), self._done(_NEXT), *seen.kept(), *seen.moved()]
        else:
            each = [*start, *keys, *values, CommitCopies(), *scores, *work, self._done(_NEXT)]
        return [Loop("round", count, (*each, *shifts.kept(later), moved)), AwaitCopies(0), Barrier()]

    def few_rounds(self, turn: int, queries: Sequence[Statement]) -> list[Statement]:
        """The same where all keys and values are on their way from the start: the last round starts nothing.

        The queries of the next turn are copied once all warps have those of this one in registers.
        """
        found: list[Statement] = []
        shifts, few = Shifts(self.block), self.block.few_rounds
        for number in range(few):
            later, is_last = Extent(number + 1), number + 1 == few
            found += [Set("round", Extent(number)), Set("stage", Extent(number))]
            if turn == 0:
                on_their_way = few - 1 - number + (1 if queries and number else 0)
                found += [AwaitCopies(on_their_way), FenceShared(), Barrier()]
                found += [] if is_last else shifts.loaded(later)
            elif queries and number == 0:
                found.append(Barrier())
            found += [*queries, CommitCopies()] if queries and number == 0 else []
            found += [] if is_last else multiplied_keys(self.block, self.keys, _NEXT, later)
            found += [*weighted(self.block), *summed(self.block, self.values, "row")]
            found += [] if is_last else [self._done(_NEXT)]
            found += [] if is_last or turn else shifts.kept(later)
            found += [] if is_last else [self._moved()]
        return found

    def _moved(self) -> Statement:
        """The scores of the next round become those of the round."""
        count, e = self.block.warp_keys // 2, Name("e")
        move = Store(private("scores", f32, count), (e,), Load(private(_NEXT, f32, count), (e,)))
        return unrolled("e", count, move)


__all__ = ["GroupRounds", "scores_allocated"]

"""Rounds of an attention by a warpgroup: the scores of the next round are multiplied while weights are computed.

So keys come two rounds ahead of their weights and values one, and one barrier in a round is enough: what is copied
after it goes where everything was read before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.gpu.attend_products import multiplied_keys, summed
from dovetail.kernels.gpu.attend_seen import SeenAhead
from dovetail.kernels.gpu.attend_softmax import weighted
from dovetail.kernels.gpu.attend_tile import AttendTile
from dovetail.kernels.gpu.fragments import private, remainder, unrolled
from dovetail.kernels.gpu.shared_tiles import SharedTile
from dovetail.kernels.loops.ir import (
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
        return self.loaded(name, number, remainder(number, 2))

    def first(self, queries: Sequence[Statement], fragments: Statement) -> list[Statement]:
        """Queries, what is copied before the first round, and its scores."""
        copies = [*queries, *self._copied("k", ZERO), CommitCopies()]
        copies += [*self._copied("v", ZERO), *self._copied("k", Extent(1)), CommitCopies()]
        ahead = SeenAhead(self.block).first() if self.block.sees_ahead else []
        arrive = [AwaitCopies(1), FenceShared(), Barrier(), fragments]
        scores = multiplied_keys(self.block, self.keys, "scores", ZERO)
        return [*copies, *ahead, *arrive, *scores, self._done("scores")]

    def _done(self, name: str) -> Statement:
        return AwaitProducts(private(name, f32, 1), self.block.warp_keys)

    def rounds(self, count: Expr) -> list[Statement]:
        """Weights and sums of each round, and the scores of the one after it."""
        now, later, after = Name("round"), Name("later"), Name("after")
        start: list[Statement] = [Set("later", add(now, Extent(1))), Set("after", add(now, Extent(2)))]
        start += [Set("stage", remainder(now, 2)), AwaitCopies(0), FenceShared(), Barrier()]
        keys, values = self._copied("k", after), self._copied("v", later)
        scores = multiplied_keys(self.block, self.keys, _NEXT, remainder(later, 2))
        work = [*weighted(self.block), *summed(self.block, self.values, "row")]
        moved = self._moved()
        if self.block.sees_ahead:
            seen = SeenAhead(self.block)
            copies = [*seen.where(after, keys), *seen.where(later, values), CommitCopies(), *seen.loaded()]
            each = [
                *start,
                *copies,
                *scores,
                *seen.where(now, work),
                self._done(_NEXT),
                *seen.kept(),
                *seen.moved(),
                moved,
            ]
        else:
            each = [*start, *keys, *values, CommitCopies(), *scores, *work, self._done(_NEXT), moved]
        return [Loop("round", count, tuple(each)), AwaitCopies(0), Barrier()]

    def _moved(self) -> Statement:
        """The scores of the next round become those of the round."""
        count, e = self.block.warp_keys // 2, Name("e")
        move = Store(private("scores", f32, count), (e,), Load(private(_NEXT, f32, count), (e,)))
        return unrolled("e", count, move)


__all__ = ["GroupRounds", "scores_allocated"]

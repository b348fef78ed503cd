"""What a mask adds to the scores of each key, in shared memory a round before it is added.

A padding mask is the same for all queries. If each lane loaded what its own scores need, a warpgroup would wait for
memory between scores and weights in every round; a thread for each key loads it while the round before is computed.
"""

from __future__ import annotations

import math

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.gpu.attention.tile import AttendTile, times
from dovetail.kernels.gpu.gemm.fragments import less, remainder
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Expr,
    Extent,
    Load,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    minimum,
)

LOG2_E = Number(math.log2(math.e), f32)
_SHIFTS, _SHIFT = "shifts", "shift"
_SLOTS = 2
"""Rounds in shared memory: this one and the next."""


@dataclass(frozen=True, slots=True)
class Shifts:
    """The shifts of the keys of a round."""

    tile: AttendTile

    @property
    def are_ahead(self) -> bool:
        """Whether all queries have the same shifts, and a warpgroup has barriers between rounds anyway."""
        strides = self.tile.problem.strides.get("mask")
        return strides is not None and strides[-2] == 0 and self.tile.overlaps

    def allocated(self) -> list[Alloc]:
        return [Alloc(_SHIFTS, f32, _SLOTS * self.tile.keys, "shared")] if self.are_ahead else []

    @property
    def _room(self) -> Tensor:
        item = f32.itemsize
        return Tensor(_SHIFTS, f32, (self.tile.keys * item, item), space="shared")

    @property
    def _own(self) -> Expr:
        """The key of a round whose shift this thread loads."""
        return remainder(ThreadIndex("thread"), self.tile.keys)

    def loaded(self, number: Expr) -> list[Statement]:
        """Load the shift of a key of a round; one beyond the last key counts for nothing."""
        if not self.are_ahead:
            return []
        a = self.tile.problem
        key = minimum(add(self.tile.first_key(number), self._own), Extent(a.keys - 1))
        source = Tensor("mask", self.tile.dtype, a.strides["mask"])
        return [Set("shift_key", key), Set(_SHIFT, Load(source, (*self.tile.lead, ZERO, Name("shift_key"))))]

    def kept(self, number: Expr) -> list[Statement]:
        """The shifts of a round in shared memory, before a barrier."""
        if not self.are_ahead:
            return []
        value = self.of(Name(_SHIFT, self.tile.dtype))
        store = Store(self._room, (remainder(number, _SLOTS), self._own), value)
        return [When(less(ThreadIndex("thread"), Extent(self.tile.keys)), (store,))]

    def of(self, mask: Expr) -> Expr:
        """What an element of the mask adds to a score."""
        wide = cast_to(mask, f32)
        return times(wide, LOG2_E) if self.tile.in_powers else wide

    def at(self, key: Expr) -> Expr:
        """The shift of a key of this round."""
        return Load(self._room, (remainder(Name("round"), _SLOTS), key))


__all__ = ["LOG2_E", "Shifts"]

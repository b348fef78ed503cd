"""Where the parts of a resident kernel have their shared memory: allocations of other times take the same place."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.ir import Alloc


@dataclass(frozen=True, slots=True)
class Room:
    """Shared memory that some slots of a pass need: slot 2b is level b, and 2b + 1 the barrier after it."""

    alloc: Alloc
    slots: frozenset[int]
    """Of a pass that others follow, with the same numbers in the next one; none for what comes after all layers."""
    last: frozenset[int] = frozenset()
    """Of the last pass: it starts no copies of a next one, may end early, and what comes after all layers is in it."""

    @property
    def nbytes(self) -> int:
        return shared_bytes([self.alloc])

    def meets(self, other: Room) -> bool:
        """Whether both are needed at the same time."""
        return bool(self.slots & other.slots or self.last & other.last)


def offsets(rooms: Sequence[Room], start: int, end: int) -> dict[str, int] | None:
    """A place for each allocation, apart from those of the same time; None where they do not fit."""
    placed: list[tuple[int, Room]] = []
    for room in sorted(rooms, key=lambda r: -r.nbytes):
        at = start
        for first, other in sorted(placed, key=lambda pair: pair[0]):
            if room.meets(other) and first < at + room.nbytes and at < first + other.nbytes:
                at = first + other.nbytes
        if at + room.nbytes > end:
            return None
        placed.append((at, room))
    return {room.alloc.pointer: at for at, room in placed}


def fullest(rooms: Sequence[Room], slots: int) -> str:
    """The slot that needs the most shared memory."""
    needs = [sum(r.nbytes for r in rooms if slot in r.slots or slot in r.last) for slot in range(slots)]
    return f"{max(needs):,} bytes at level {needs.index(max(needs)) // 2}"


__all__ = ["Room", "fullest", "offsets"]

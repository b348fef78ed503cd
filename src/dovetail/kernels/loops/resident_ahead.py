"""Small tensors that no part of a resident kernel writes: they come to shared memory before a part waits for others."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.kernels.loops.composed import Renaming, copied_whole
from dovetail.kernels.loops.ir import (
    Alloc,
    CommitCopies,
    Statement,
)


def copies(near: Mapping[str, Alloc]) -> list[Statement]:
    """Copies of small tensors to shared memory, as one group."""
    found = [s for pointer, alloc in near.items() for s in copied_whole(pointer, alloc)]
    return [*found, CommitCopies()] if found else []


def from_near(body: tuple[Statement, ...], near: Mapping[str, Alloc]) -> tuple[Statement, ...]:
    """A body that loads small tensors from shared memory."""
    rooms = {pointer: alloc.pointer for pointer, alloc in near.items()}
    return Renaming(lambda n: n, rooms, frozenset(rooms.values())).body(body)


__all__ = ["copies", "from_near"]

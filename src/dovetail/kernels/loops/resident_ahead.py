"""What a part of a resident kernel copies to shared memory before it needs it: small tensors that no part writes come
before a part waits for others, and weights of later parts once it has received what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.kernels.loops.composed import Renaming, copied_whole
from dovetail.kernels.loops.ir import (
    Alloc,
    CommitCopies,
    Receive,
    Statement,
)
from dovetail.kernels.loops.resident_passes import part_in, with_part


def copies(near: Mapping[str, Alloc]) -> list[Statement]:
    """Copies of small tensors to shared memory, as one group."""
    found = [s for pointer, alloc in near.items() for s in copied_whole(pointer, alloc)]
    return [*found, CommitCopies()] if found else []


def from_near(body: tuple[Statement, ...], near: Mapping[str, Alloc]) -> tuple[Statement, ...]:
    """A body that loads small tensors from shared memory."""
    rooms = {pointer: alloc.pointer for pointer, alloc in near.items()}
    return Renaming(lambda n: n, rooms, frozenset(rooms.values())).body(body)


def after_words(parts: Sequence[Statement], copied: Sequence[Statement]) -> list[Statement]:
    """The parts of a level, and copies that start once its blocks have received what they wait for."""
    if not copied:
        return [*parts]
    firsts: list[Statement] = []
    rests: list[Statement] = []
    for s in parts:
        part = part_in(s)
        assert part is not None, "it is a part"
        waits = [at for at, s in enumerate(part.body) if isinstance(s, Receive)]
        end = waits[0] + 1 if waits else 0
        firsts += [with_part(s, lambda p, end=end: replace(p, body=p.body[:end]))] if end else []
        rests.append(with_part(s, lambda p, end=end: replace(p, body=p.body[end:])))
    return [*firsts, *copied, *rests]


__all__ = ["after_words", "copies", "from_near"]

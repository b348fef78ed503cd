"""Bodies of kernels as parts of a resident kernel: cut at barriers of a cluster, without allocations, in its phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from dovetail.ir.dtype import i64
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Alloc,
    AwaitCopies,
    AwaitPhase,
    Call,
    ClusterBarrier,
    CopyBulk,
    Extent,
    Loop,
    Name,
    Prefetch,
    Set,
    Statement,
    When,
)

PASS = Name("pass")
"""The number of a pass."""


def segments_of(body: tuple[Statement, ...]) -> list[tuple[Statement, ...]]:
    """The parts of a body between barriers of its cluster; nothing but memory goes from one to the next."""
    found: list[list[Statement]] = [[]]
    for statement in body:
        if isinstance(statement, ClusterBarrier):
            found.append([])
        else:
            found[-1].append(statement)
    return [tuple(part) for part in found]


def without(body: tuple[Statement, ...], kind: type[Statement], *, shared: bool = False) -> tuple[Statement, ...]:
    """A body without statements of a kind, wherever they are; of allocations those of shared memory."""
    found: list[Statement] = []
    for statement in body:
        if isinstance(statement, (Loop, When)):
            found.append(replace(statement, body=without(statement.body, kind, shared=shared)))
        elif not isinstance(statement, kind) or (shared and cast(Alloc, statement).space != "shared"):
            found.append(statement)
    return tuple(found)


def only_prefetches(early: Sequence[Statement]) -> bool:
    """Whether a kernel only prefetches before the kernels before it have ended."""
    every = list(everything(early))
    return bool(every) and all([isinstance(s, (Set, Loop, When, Prefetch)) for s in every])


def has_bulk(body: Sequence[Statement]) -> bool:
    return any(isinstance(s, CopyBulk) for s in everything(body))


def in_phase(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """A body that waits for the copies of its pass: a barrier has one phase in each."""
    found: list[Statement] = []
    for statement in body:
        if isinstance(statement, (Loop, When)):
            statement = replace(statement, body=in_phase(statement.body))
        elif isinstance(statement, AwaitPhase):
            statement = replace(statement, phase=Call("bit_and", (PASS, Extent(1)), i64))
        found.append(statement)
    return tuple(found)


def awaiting(body: tuple[Statement, ...], pending: int) -> tuple[Statement, ...]:
    """A body that awaits its copies all at once, before the first of them is used; others may be on their way."""
    found: list[Statement] = []
    has_awaited = False
    for statement in body:
        if isinstance(statement, (Loop, When)):
            found.append(replace(statement, body=awaiting(statement.body, pending)))
        elif not isinstance(statement, AwaitCopies):
            # Barriers stay: one after a wait also keeps what warps still read from what others write there.
            found.append(statement)
        elif not has_awaited:
            found.append(AwaitCopies(pending))
            has_awaited = True
    return tuple(found)


__all__ = ["PASS", "awaiting", "has_bulk", "in_phase", "only_prefetches", "segments_of", "without"]

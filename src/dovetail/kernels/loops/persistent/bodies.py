"""Bodies of kernels as parts of a persistent one: cut at barriers of a cluster, without allocations, in its phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from dovetail.ir.dtype import i64
from dovetail.kernels.choice import Refused
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Alloc,
    AwaitCopies,
    AwaitPhase,
    Barrier,
    Call,
    ClusterBarrier,
    CopyBulk,
    Extent,
    Kernel,
    Loop,
    Name,
    Statement,
    add,
    expand,
    mul,
    needs,
    with_bodies,
)

_KNOWN = frozenset(
    ["threads", "lanes", "atomics", "barriers", "warp_barriers", "clusters", "copies", "prefetches", "matrices",
     "bulk_copies", "amends"]
)  # fmt: skip
"""What is in a part."""
TENSOR_MAPS, TURNS, STATEMENTS = "copies_need_no_tensor_maps", "blocks_take_turns", "statements_are_known"
"""Conditions that another kernel for the same step may hold."""
ROWS = "rows"
"""The shared memory that holds the left rows of the only tile of a block."""
PASS = Name("pass")
"""The number of a pass."""


def refused_part(kernel: Kernel, blocks: int) -> Refused | None:
    """Why a scheduled kernel cannot be a part of one with some blocks; None where it can."""
    launch = kernel.launch
    if launch is None or not isinstance(launch.grid, int) or launch.grid <= 0:
        return Refused("blocks_are_counted", "a grid whose size is known at run time", "a grid of known size")
    if kernel.maps:
        return Refused(TENSOR_MAPS, f"{len(kernel.maps)} tensor maps", "copies by addresses")
    if launch.grid > blocks and (launch.cluster > 1 or kernel.early):
        waits = "blocks that wait for each other" if launch.cluster > 1 else "copies before it starts"
        return Refused(TURNS, f"{waits}, and a grid of {launch.grid}", f"a grid of at most {blocks}")
    every = (*everything(kernel.early), *everything(kernel.body))
    unknown = [type(s).__name__ for s in every if s.feature not in _KNOWN]
    if unknown:
        return Refused(STATEMENTS, ", ".join(dict.fromkeys(unknown)), "loops, copies, products of warps")
    waits = sum(isinstance(s, ClusterBarrier) for s in everything(kernel.body))
    if waits != sum(isinstance(s, ClusterBarrier) for s in kernel.body):
        return Refused("clusters_wait_between_segments", "a barrier of a cluster in a loop")
    return None


def has_rows(kernel: Kernel) -> bool:
    """Whether a kernel has the rows of its tile, and all of its weights, in shared memory."""
    return any([isinstance(s, Alloc) and s.pointer == ROWS for s in kernel.body])


def segments_of(body: tuple[Statement, ...]) -> list[tuple[Statement, ...]]:
    """The parts of a body between barriers of its cluster; nothing but memory goes from one to the next."""
    segments: list[list[Statement]] = [[]]
    for statement in body:
        if isinstance(statement, ClusterBarrier):
            segments.append([])
        else:
            segments[-1].append(statement)
    return [tuple(part) for part in segments]


def without(body: tuple[Statement, ...], kind: type[Statement], *, shared: bool = False) -> tuple[Statement, ...]:
    """A body without statements of a kind, wherever they are; of allocations those of shared memory."""

    def gone(s: Statement) -> tuple[Statement, ...] | None:
        return () if isinstance(s, kind) and not (shared and cast(Alloc, s).space != "shared") else None

    return expand(body, gone)


def without_last_barrier(body: tuple[Statement, ...], blocks: int) -> tuple[Statement, ...]:
    """A body without the barrier that ends its only tile: the block waits for its threads after each level anyway."""
    *others, last = body
    if isinstance(last, Loop) and last.kind == "block" and isinstance(last.body[-1], Barrier):
        extent = last.extent.size if isinstance(last.extent, Extent) else None
        if isinstance(extent, int) and extent <= blocks:
            return (*others, replace(last, body=last.body[:-1]))
    return body


def only_prefetches(early: Sequence[Statement]) -> bool:
    """Whether a kernel only prefetches before the kernels before it have ended."""
    return bool(early) and needs(early) <= {"threads", "prefetches"}


def has_bulk(body: Sequence[Statement]) -> bool:
    return any(isinstance(s, CopyBulk) for s in everything(body))


def in_phase(body: tuple[Statement, ...], first: int = 0) -> tuple[Statement, ...]:
    """A body that waits for the copies of its pass: a barrier has as many phases in each, from the first one on."""
    passed = add(PASS, Extent(-first)) if first else PASS

    def awaited(s: Statement) -> list[Statement] | None:
        if not isinstance(s, AwaitPhase):
            return None
        phase = add(mul(passed, Extent(s.turns)), s.phase)
        return [replace(s, phase=Call("bit_and", (phase, Extent(1)), i64))]

    return expand(body, awaited)


def awaiting(body: tuple[Statement, ...], pending: int) -> tuple[Statement, ...]:
    """A body that awaits its copies all at once, before the first of them is used; others may be on their way."""
    statements: list[Statement] = []
    has_awaited = False
    for statement in body:
        if not isinstance(statement, AwaitCopies):
            # Barriers stay: one after a wait also keeps what warps still read from what others write there.
            statements.append(with_bodies(statement, lambda inner: awaiting(inner, pending)))
        elif not has_awaited:
            statements.append(AwaitCopies(pending))
            has_awaited = True
    return tuple(statements)


__all__ = [
    "PASS",
    "ROWS",
    "STATEMENTS",
    "TENSOR_MAPS",
    "TURNS",
    "awaiting",
    "has_bulk",
    "has_rows",
    "in_phase",
    "only_prefetches",
    "refused_part",
    "segments_of",
    "without",
    "without_last_barrier",
]

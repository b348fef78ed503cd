"""Copies from shared memory to shared memory that need not be made.

A kernel brings what many of its threads read to shared memory. Where that was computed or received there, the copy is
the same elements in the same order: what reads it reads the first place instead, and no thread waits for the copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    AwaitPhase,
    Barrier,
    Expr,
    Load,
    Loop,
    Statement,
    Store,
    Tensor,
    needs,
    reads,
    with_bodies,
)


def without_shared_copies(
    body: tuple[Statement, ...], sizes: Mapping[str, int], rooms: Mapping[str, int]
) -> tuple[tuple[Statement, ...], dict[str, str]]:
    """A body without copies of shared memory that was filled before it, and what to read instead of each.

    `sizes` has the elements of the body's own shared memory, and `rooms` those of what was filled.
    """
    instead: dict[str, str] = {}
    for copy in [s for s in everything(body) if isinstance(s, Loop)]:
        copied = _copied(copy)
        if copied is None or copied[0] in instead:
            continue
        target, source = copied
        written = [s.tensor.pointer for s in everything(body) if isinstance(s, Store)]
        is_whole = 0 < sizes.get(target, 0) <= rooms.get(source, 0)
        if is_whole and written.count(target) == 1 and source not in written:
            body, instead[target] = _without(body, copy), source
    return body, instead


def _copied(copy: Loop) -> tuple[str, str] | None:
    """The shared memory that a loop copies to, and that which it copies; None where it does anything else."""
    inner = [*everything(copy.body)]
    stores = [s for s in inner if isinstance(s, Store)]
    if len(stores) != 1 or needs(inner) != {"threads"}:
        return None
    (store,) = stores
    value, target = store.value, store.tensor
    if not isinstance(value, Load) or target.space != "shared" or value.tensor.space != "shared":
        return None
    same = _place(target, store.at) == _place(value.tensor, value.at) and target.offset == value.tensor.offset
    return (target.pointer, value.tensor.pointer) if same and len(reads((copy,))) == 1 else None


def _place(tensor: Tensor, at: tuple[Expr, ...]) -> list[tuple[object, Expr]]:
    """The strides of an index, without axes along which it is 0."""
    return [(stride, index) for stride, index in zip(tensor.strides, at, strict=True) if index != ZERO]


def _without(body: tuple[Statement, ...], copy: Loop) -> tuple[Statement, ...]:
    """A body without a copy, and without the barrier after it where threads wait for nothing else there."""
    statements: list[Statement] = []
    gone = False
    for s in body:
        if s is copy:
            gone = True
        elif gone and isinstance(s, Barrier) and isinstance(statements[-1], AwaitPhase):
            gone = False
        else:
            statements.append(with_bodies(s, lambda inner: _without(inner, copy)))
    return tuple(statements)


__all__ = ["without_shared_copies"]

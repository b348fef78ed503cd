"""Weights that a part of a resident kernel loads from shared memory to registers before it receives anything.

Words of other blocks come last. Weights that are in registers by then are not on the way from them to the next level.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import replace

from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    AwaitPhase,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    ThreadIndex,
)
from dovetail.kernels.loops.resident_matrices import held


def loaded_ahead(
    body: tuple[Statement, ...], received: Collection[str]
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """The wait of a block's only tile for its copies, with what it then loads of them by its threads' indices, and the
    rest of the body; nothing ahead where it loads nothing. `received` is the shared memory that is filled later."""
    tiles = [at for at, s in enumerate(body) if isinstance(s, Loop) and s.kind == "block"]
    loop = body[tiles[0]] if len(tiles) == 1 else None
    if not isinstance(loop, Loop):
        return (), body
    waits = [at for at, s in enumerate(loop.body) if isinstance(s, AwaitPhase)]
    if len(waits) != 1:
        return (), body
    (first,) = waits
    filled = {*received, *[s.tensor.pointer for s in everything(body) if isinstance(s, Store)]}
    known: set[str] = set()
    for s in loop.body[first + 1 :]:
        if not isinstance(s, Set) or s.name in known or not _is_known(s.value, known, filled):
            break
        known.add(s.name)
    before = {s.name for s in everything(loop.body[:first]) if isinstance(s, Set)}
    if not known and first + 1 < len(loop.body):
        found = held(
            loop.body[first + 1],
            lambda x, variable: _is_known(x, {variable}, filled),
            lambda tensor: tensor.space == "shared" and tensor.pointer not in filled,
        )
        if found is not None:
            rest = replace(loop, body=(*loop.body[:first], found.rest, *loop.body[first + 2 :]))
            ahead = (*found.allocations, loop.body[first], found.loads)
            return ahead, (*body[: tiles[0]], rest, *body[tiles[0] + 1 :])
    if not known or known & before:
        return (), body
    end = first + 1 + len(known)
    rest = replace(loop, body=(*loop.body[:first], *loop.body[end:]))
    return loop.body[first:end], (*body[: tiles[0]], rest, *body[tiles[0] + 1 :])


def _is_known(x: Expr, known: AbstractSet[str], filled: AbstractSet[str]) -> bool:
    """Whether an expression has indices of threads, known names, and shared memory that nothing fills later."""
    match x:
        case Number() | Extent() | ThreadIndex():
            return True
        case Name(name):
            return name in known
        case Call(_, operands):
            return all([_is_known(y, known, filled) for y in operands])
        case Load(tensor, at):
            is_there = tensor.space == "shared" and tensor.pointer not in filled
            return is_there and all([_is_known(y, known, filled) for y in at])


__all__ = ["loaded_ahead"]

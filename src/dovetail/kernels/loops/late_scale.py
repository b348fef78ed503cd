"""Norms whose scale multiplies sums of products, so that products need not wait for it.

A prologue that scales each element of a row by one factor, such as the inverse of a root mean square, leaves the factor
out. It is computed from the same partial sums where the block adds up its products, and multiplies those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bf16, f32
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    AllReduce,
    Barrier,
    Call,
    Expr,
    Load,
    LoadMatrices,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    When,
)
from dovetail.kernels.loops.uniform import reads


@dataclass(frozen=True, slots=True)
class LateScale:
    """A prologue without its scale, and the products that it multiplies."""

    before: tuple[Statement, ...]
    rest: tuple[Statement, ...]


def late_scale(before: Sequence[Statement], rest: Sequence[Statement], room: str) -> LateScale | None:
    """A prologue that fills a room of bf16 and what reads that, with the scale moved; None where there is none.

    Elements of f16 could overflow without their scale.
    """
    found = _split(before, room) if _only_multiplies(rest, room) else None
    if found is None:
        return None
    loop, first, scale, last, name = found
    tiles = [s for s in rest if isinstance(s, Loop) and s.kind == "block"]
    if len(tiles) != 1:
        return None
    body = _scaled_sums(tiles[0].body, scale, name)
    if body is None:
        return None
    whole = [replace(s, body=body) if s is tiles[0] else s for s in rest]
    kept = [replace(s, body=(*first, *last)) if s is loop else s for s in before]
    return LateScale(tuple(kept), tuple(whole))


def _only_multiplies(rest: Sequence[Statement], room: str) -> bool:
    """Whether tensor cores alone read a room: sums of their products have its scale, and nothing else does."""
    factors = [s for s in everything(rest) if isinstance(s, LoadMatrices)]
    others = any(tensor.pointer == room for tensor, _ in reads(rest))
    return any(s.source.pointer == room for s in factors) and not others


def _split(
    before: Sequence[Statement], room: str
) -> tuple[Loop, tuple[Statement, ...], list[Statement], tuple[Statement, ...], Name] | None:
    """The loop of a prologue: what each warp adds up, what computes the scale of it, and stores without the scale."""
    loops = [s for s in before if isinstance(s, Loop)]
    stores = [s for s in everything(before) if isinstance(s, Store) and s.tensor.pointer == room]
    if len(loops) != 1 or len(stores) != 1 or stores[0].tensor.dtype is not bf16:
        return None
    (loop,), (store,) = loops, stores
    barriers = [i for i, s in enumerate(loop.body) if isinstance(s, Barrier)]
    sets = {s.name: i for i, s in enumerate(loop.body) if isinstance(s, Set)}
    for name in _names(store.value):
        value = _without_factor(store.value, name)
        at = sets.get(name.name, -1)
        if value is None or not barriers or at < barriers[0] or name.dtype is not f32:
            continue
        first, scale, last = loop.body[: barriers[0]], loop.body[barriers[0] + 1 : at + 1], loop.body[at + 1 :]
        alone = [s for s in scale if not isinstance(s, Barrier)]
        own = {s.name for s in alone if isinstance(s, (Set, AllReduce))}
        plain = all(isinstance(s, (Set, AllReduce)) for s in alone)
        last = cast(tuple[Statement, ...], _replaced(last, store.value, value))
        read = {n.name for n in _names(last)} & own
        starts = _starts(first, alone)
        if plain and not read and starts is not None:
            return loop, first, [*starts, *alone], last, name
    return None


def _starts(first: Sequence[Statement], scale: Sequence[Statement]) -> list[Statement] | None:
    """What scalars of the scale start with: numbers. None where one starts with anything else."""
    known: set[str] = set()
    needed: list[str] = []
    for s in scale:
        if isinstance(s, Set):
            needed += [n.name for n in _names(s.value) if n.name not in known]
            known.add(s.name)
    found: list[Statement] = []
    for name in dict.fromkeys(needed):
        sets = [s for s in first if isinstance(s, Set) and s.name == name]
        if len(sets) != 1 or not isinstance(sets[0].value, Number):
            return None
        found += sets
    return found


def _scaled_sums(body: tuple[Statement, ...], scale: Sequence[Statement], name: Name) -> tuple[Statement, ...] | None:
    """What a block does for its tile, with sums of all warps times a scale that all threads compute before."""
    ends = [i for i, s in enumerate(body[:-1]) if isinstance(s, Barrier) and isinstance(body[i + 1], When)]
    if not ends:
        return None
    at = ends[-1]
    last = body[at + 1]
    if at == 0 or not any(isinstance(s, Store) and s.tensor.dtype is f32 for s in everything(body[:at])):
        return None
    scaled, count = _multiplied(last, name)
    return (*body[: at + 1], *scale, cast(Statement, scaled), *body[at + 2 :]) if count else None


def _multiplied(part: Any, name: Name) -> tuple[Any, int]:
    """A statement with every sum of f32 in shared memory times a scale, and how many there are."""
    if isinstance(part, Call) and part.op == "add" and _is_sum(part):
        return Call("mul", (part, name), f32), 1
    if isinstance(part, tuple):
        several = [_multiplied(x, name) for x in cast(tuple[Any, ...], part)]
        return tuple([x for x, _ in several]), sum([n for _, n in several])
    if isinstance(part, (Call, Store, When, Set, Loop)):
        every = {f.name: _multiplied(getattr(part, f.name), name) for f in fields(part)}
        changed: dict[str, Any] = {field: x for field, (x, _) in every.items()}
        return replace(part, **changed), sum([n for _, n in every.values()])
    return part, 0


def _is_sum(expr: Expr) -> bool:
    """Whether an expression adds up what warps left in shared memory, and nothing else."""
    if isinstance(expr, Load):
        return expr.tensor.space == "shared" and expr.tensor.dtype is f32
    return isinstance(expr, Call) and expr.op == "add" and expr.dtype is f32 and all(map(_is_sum, expr.operands))


def _without_factor(expr: Expr, name: Name) -> Expr | None:
    """A product without one of its factors; None where it is none."""
    if not isinstance(expr, Call):
        return None
    if expr.op == "cast" and expr.operands[0].dtype is f32:
        inner = _without_factor(expr.operands[0], name)
        return None if inner is None else replace(expr, operands=(inner,))
    if expr.op != "mul":
        return None
    x, y = expr.operands
    for factor, other in ((x, y), (y, x)):
        if factor == name:
            return other
        inner = _without_factor(factor, name) if isinstance(factor, Call) and factor.op == "mul" else None
        if inner is not None:
            return replace(expr, operands=(inner, other))
    return None


def _replaced(part: Any, old: Expr, new: Expr) -> Any:
    if part is old:
        return new
    if isinstance(part, tuple):
        return tuple([_replaced(x, old, new) for x in cast(tuple[Any, ...], part)])
    if isinstance(part, (Loop, When, Store)):
        changed: dict[str, Any] = {f.name: _replaced(getattr(part, f.name), old, new) for f in fields(part)}
        return replace(part, **changed)
    return part


def _names(part: Any) -> list[Name]:
    """Scalars that an expression or statements read."""
    if isinstance(part, Name):
        return [part]
    if isinstance(part, tuple):
        return [n for x in cast(tuple[Any, ...], part) for n in _names(x)]
    if isinstance(part, (Call, Load, Store, When, Set, Loop)):
        return [n for f in fields(part) for n in _names(getattr(part, f.name))]
    return []


__all__ = ["LateScale", "late_scale"]

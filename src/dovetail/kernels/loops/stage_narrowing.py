"""The loops of a stage, for the iterations alone whose index along an axis is in one slice.

A stage goes through all elements of a result, a thread for each: `start` is the first element of a tile, and `j` one of
its elements. Where a slice is elements that follow each other, threads go through these alone. Other stages go on only
where the index is in the slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    Barrier,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    When,
    mul,
)
from dovetail.kernels.loops.uniform import number_of

Body = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """The name that is an index along slices, how many of its values are one slice, and which slice it is."""

    name: str
    count: int
    slice: Expr


def narrowed(body: Body, index: Index) -> Body:
    """A body for one slice; all of it where its threads wait for each other."""
    return body if any(isinstance(s, Barrier) for s in everything(body)) else _narrowed(body, index)


def _narrowed(body: Body, index: Index) -> Body:
    found: list[Statement] = []
    for at, s in enumerate(body):
        if isinstance(s, Set) and s.name == index.name:
            own: Expr = Name(s.name) if index.count == 1 else Call("div", (Name(s.name), Extent(index.count)), i64)
            inside = Call("equal", (own, index.slice), bool_)
            return (*found, s, When(inside, _in_slice(body[at + 1 :], index)))
        after = body[at + 1] if at + 1 < len(body) else None
        few = _few(s, after, index) if isinstance(s, Set) and isinstance(after, Loop) else None
        if few is not None:
            return (*found, few, *_narrowed(body[at + 2 :], index))
        found.append(replace(s, body=_narrowed(s.body, index)) if isinstance(s, (Loop, When)) else s)
    return tuple(found)


def _few(start: Set, loop: Loop, index: Index) -> Statement | None:
    """A tile of elements and the loop over them as a loop over those of a slice; None where that is not known."""
    match start.value, loop.extent:
        case (
            Call("mul", (tile, Extent(int(size)))),
            Call("minimum", (Extent(most), Call("sub", (Extent(int(count)), Name(of))))),
        ) if loop.kind == "thread" and most == size and of == start.name:
            pass
        case _:
            return None
    sets = [at for at, s in enumerate(loop.body) if isinstance(s, Set) and s.name == index.name]
    if len(sets) != 1:
        return None
    places = [{of: i // size * size, loop.variable: i % size} for i in range(count)]
    before = [_folded(s, places) for s in loop.body[: sets[0]]]
    found = loop.body[sets[0]]
    assert isinstance(found, Set), "it was found"
    numbers = [number_of(found.value, place) for place in places]
    last = numbers[-1]
    if last is None or count % (last // index.count + 1):
        return None
    span = count // (last // index.count + 1)
    if any(number is None or number // index.count != i // span for i, number in enumerate(numbers)):
        return None
    body = (*before, found, *_in_slice(loop.body[sets[0] + 1 :], index))
    first = Call("equal", (tile, ZERO), bool_)
    own = replace(loop, extent=Extent(span), body=body)
    return When(first, (Set(start.name, mul(index.slice, Extent(span))), own))


def _folded(statement: Statement, places: Sequence[Mapping[str, int]]) -> Statement:
    """A name that is the same number for all elements, such as an index along an axis of one."""
    if not isinstance(statement, Set):
        return statement
    numbers = {number_of(statement.value, place) for place in places}
    (number, *others) = numbers
    return statement if others or number is None else replace(statement, value=Extent(number))


def _in_slice(body: Body, index: Index) -> Body:
    """What runs in a slice, with the slice as an index of its own: all threads of a block have the same there."""
    return tuple([_InSlice(index).of(s) for s in body])


@dataclass(frozen=True, slots=True)
class _InSlice:
    index: Index

    def of(self, part: Any) -> Any:
        index = self.index
        if isinstance(part, tuple):
            return tuple([self.of(x) for x in cast(tuple[Any, ...], part)])
        if index.count == 1 and isinstance(part, Name) and part.name == index.name:
            return index.slice
        if index.count > 1 and isinstance(part, (Load, Store)):
            part = self._cut(part)
        if not is_dataclass(part) or not isinstance(part, (Load, Call, Store, Set, Loop, When)):
            return part
        changed = {f.name: self.of(getattr(part, f.name)) for f in fields(part)}
        return replace(part, **changed)

    def _cut(self, part: Load | Store) -> Load | Store:
        """An element of a tensor whose axis of the index is cut into slices."""
        index = self.index
        axes = [axis for axis, x in enumerate(part.at) if isinstance(x, Name) and x.name == index.name]
        if len(axes) != 1:
            return part
        axis, strides = axes[0], part.tensor.strides
        cut = (strides[axis] * index.count, strides[axis])
        own = Call("rem", (Name(index.name), Extent(index.count)), i64)
        at = (*part.at[:axis], index.slice, own, *part.at[axis + 1 :])
        tensor = replace(part.tensor, strides=(*strides[:axis], *cut, *strides[axis + 1 :]))
        return replace(part, tensor=tensor, at=at)


__all__ = ["Index", "narrowed"]

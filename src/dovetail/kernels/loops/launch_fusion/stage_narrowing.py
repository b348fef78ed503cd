"""The loops of a stage, for the iterations alone whose index along an axis is in one slice.

A stage goes through all elements of a result, a thread for each: `start` is the first element of a tile, and `j` one of
its elements. Where a slice is elements that follow each other, threads go through these alone. Other stages go on only
where the index is in the slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    Barrier,
    Call,
    Done,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Rewriting,
    Set,
    Statement,
    Store,
    ThreadIndex,
    When,
    add,
    mul,
    with_bodies,
)
from dovetail.kernels.loops.repeated import Repeated
from dovetail.kernels.loops.uniform import number_of

Body = tuple[Statement, ...]
_NEIGHBOURS = 8
"""Elements of a row that a lane has, at most, for its code to be repeated for each."""


@dataclass(frozen=True, slots=True)
class Index:
    """The name that is an index along slices, how many of its values are one slice, and which slice it is."""

    name: str
    count: int
    slice: Expr
    row: Expr | None = None
    """Which of the values of the slice a warp has for itself; None where all threads of a block share them."""
    lanes: int = LANES
    """Threads of a warp."""

    def of_slice(self, span: int) -> Expr:
        """The first of `span` elements of a slice, or of the share of a row in them."""
        start = mul(self.slice, Extent(span))
        return start if self.row is None else add(start, mul(self.row, Extent(span // self.count)))


def narrowed(body: Body, index: Index) -> Body:
    """A body for one slice; all of it where its threads wait for each other."""
    return body if any(isinstance(s, Barrier) for s in everything(body)) else _narrowed(body, index)


def _narrowed(body: Body, index: Index) -> Body:
    statements: list[Statement] = []
    for at, s in enumerate(body):
        if isinstance(s, Set) and s.name == index.name:
            own: Expr = Name(s.name)
            if index.count > 1 and index.row is None:
                own = Call("div", (own, Extent(index.count)), i64)
            number = index.slice if index.row is None else index.of_slice(index.count)
            inside = Call("equal", (own, number), bool_)
            return (*statements, s, When(inside, _in_slice(body[at + 1 :], index)))
        after = body[at + 1] if at + 1 < len(body) else None
        of_slice = _elements_of_slice(s, after, index) if isinstance(s, Set) and isinstance(after, Loop) else None
        if of_slice is not None:
            return (*statements, of_slice, *_narrowed(body[at + 2 :], index))
        statements.append(with_bodies(s, lambda inner: _narrowed(inner, index)))
    return tuple(statements)


def _elements_of_slice(start: Set, loop: Loop, index: Index) -> Statement | None:
    """A tile of elements and the loop over them as a loop over those of a slice; None where that is not known."""
    elements = loop.elements
    if elements is None or elements.first.name != start.name or loop.kind != "thread":
        return None
    of, size, count, tile = start.name, elements.size, elements.count, _tile_of(start)
    if not isinstance(count, int):
        return None
    loop = replace(loop, elements=None)
    sets = [at for at, s in enumerate(loop.body) if isinstance(s, Set) and s.name == index.name]
    if len(sets) != 1:
        return None
    places = [{of: i // size * size, loop.variable: i % size} for i in range(count)]
    before = [_folded(s, places) for s in loop.body[: sets[0]]]
    row_set = loop.body[sets[0]]
    assert isinstance(row_set, Set), "its place is in the list"
    numbers = [number_of(row_set.value, place) for place in places]
    last = numbers[-1]
    if last is None or count % (last // index.count + 1):
        return None
    span = count // (last // index.count + 1)
    if any(number is None or number // index.count != i // span for i, number in enumerate(numbers)):
        return None
    first = Call("equal", (tile, ZERO), bool_)
    if index.row is None:
        body = (*before, row_set, *_in_slice(loop.body[sets[0] + 1 :], index))
        return When(first, (Set(start.name, index.of_slice(span)), replace(loop, extent=Extent(span), body=body)))
    rows = span // index.count
    if span % index.count or any([number != i // rows for i, number in enumerate(numbers)]):
        return None
    sets_of_row = [_folded(_in_row(s, loop.variable, places, rows), places) for s in loop.body]
    sets_of_row[sets[0]] = replace(row_set, value=index.of_slice(index.count))
    return When(
        first,
        (Set(start.name, index.of_slice(span)), *_by_lanes(loop, rows, index.lanes, _in_slice(sets_of_row, index))),
    )


def _tile_of(start: Set) -> Expr:
    """The number of a tile, of which the first element is set."""
    match start.value:
        case Call("mul", (tile, Extent())):
            return tile
        case tile:
            return tile


def _in_row(statement: Statement, element: str, places: Sequence[Mapping[str, int]], rows: int) -> Statement:
    """A name that is the number of an element in its row, without quotients; a remainder says how large it is."""
    if not isinstance(statement, Set):
        return statement
    is_element = all([number_of(statement.value, place) == i % rows for i, place in enumerate(places)])
    return replace(statement, value=Call("rem", (Name(element), Extent(rows)), i64)) if is_element else statement


def _by_lanes(loop: Loop, count: int, lanes: int, body: Body) -> tuple[Statement, ...]:
    """A loop over the elements of a row by the lanes of a warp: neighbours are loaded and stored at once."""
    each, turn = count // lanes, f"{loop.variable}_turn"
    own = Set(loop.variable, add(mul(ThreadIndex("lane"), Extent(each)), Name(turn)))
    repeated = Repeated(turn, each).of(body, [own]) if count % lanes == 0 and each <= _NEIGHBOURS else None
    return (replace(loop, extent=Extent(count), kind="lane", body=body),) if repeated is None else tuple(repeated)


def _folded(statement: Statement, places: Sequence[Mapping[str, int]]) -> Statement:
    """A name that is the same number for all elements, such as an index along an axis of one."""
    if not isinstance(statement, Set):
        return statement
    numbers = {number_of(statement.value, place) for place in places}
    (number, *others) = numbers
    return statement if others or number is None else replace(statement, value=Extent(number))


def _in_slice(body: Sequence[Statement], index: Index) -> Body:
    """What runs in a slice, with the slice as an index of its own: all threads of a block have the same there."""
    return _InSlice(index).body(tuple(body))


@dataclass(frozen=True, slots=True)
class _InSlice(Rewriting):
    index: Index
    done: Done = field(default_factory=dict[int, tuple[Any, Any]])

    def changed(self, part: Any) -> Any:
        index = self.index
        if index.count == 1 and isinstance(part, Name) and part.name == index.name:
            return index.slice
        return self.inside(self._cut(part) if index.count > 1 and isinstance(part, (Load, Store)) else part)

    def _cut(self, part: Load | Store) -> Load | Store:
        """An element of a tensor whose axis of the index is cut into slices."""
        index = self.index
        axes = [axis for axis, x in enumerate(part.at) if isinstance(x, Name) and x.name == index.name]
        if len(axes) != 1:
            return part
        axis, strides = axes[0], part.tensor.strides
        cut = (strides[axis] * index.count, strides[axis])
        own = Call("rem", (Name(index.name) if index.row is None else index.row, Extent(index.count)), i64)
        at = (*part.at[:axis], index.slice, own, *part.at[axis + 1 :])
        tensor = replace(part.tensor, strides=(*strides[:axis], *cut, *strides[axis + 1 :]))
        return replace(part, tensor=tensor, at=at)


__all__ = ["Body", "Index", "narrowed"]

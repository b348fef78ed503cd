"""How often a loop runs whose condition counts: `i < n`, where `n` is a size and `i` grows by 1 in every trip.

Keras exports its recurrent layers as such loops, and `tf.map_fn` is one with two counters: `i < n and j < n`. With its
trip count a loop is a scan, whose outputs have known sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.frontends.shared.site import Site
from dovetail.ir import leaf
from dovetail.ir.dim import Size, largest, smallest
from dovetail.ir.dtype import DType, bool_, f32, f64, i32, i64
from dovetail.ir.graph import Subgraph
from dovetail.ir.value import Value

_EXACT: tuple[DType, ...] = (i32, i64, f32, f64)
"""They hold every number of trips that a loop may have (MOST_TRIPS)."""
_FREE = (ops.squeeze, ops.unsqueeze, ops.reshape)


def trip_count(n: Site, once: Subgraph, carries: Sequence[Value], captures: Sequence[Value], flag: int) -> Size | None:
    """The number of trips; None where the condition does not count to a size, or to several with `and`.

    `once` is the body, and `flag` the index of the carry that says whether another trip follows.
    """
    operands = (*carries, *captures)
    counts = [_count(n, once, len(carries), operands, one) for one in _conjuncts(once.results[flag])]
    found = [count for count in counts if count is not None]
    if not found or len(found) < len(counts):
        return None
    first = n.known(operands[flag])
    if first is not None:
        return reduce(smallest, [largest(c.trips + 1 - c.ahead, 1) for c in found]) if bool(first.item()) else 0
    asked = [_asked(n, one) for one in _conjuncts(operands[flag])]
    if any(c.ahead != 1 for c in found) or {*asked} != {(c.start, c.bound) for c in found}:
        return None
    return reduce(smallest, [largest(trips, 0) for trips in dict.fromkeys(c.trips for c in found)])


@dataclass(frozen=True, slots=True)
class _Count:
    """A condition that counts from a number to a size, and how far it is ahead of its counter."""

    start: int
    bound: Size
    ahead: int

    @property
    def trips(self) -> Size:
        return self.bound - self.start


def _conjuncts(value: Value) -> list[Value]:
    """The conditions that all must hold."""
    value = _plain(value)
    if value.op is ops.bit_and and value.dtype is bool_:
        return [one for operand in value.operands for one in _conjuncts(operand)]
    return [value]


def _count(n: Site, once: Subgraph, carried: int, operands: Sequence[Value], again: Value) -> _Count | None:
    """A condition of the body that counts; None for any other."""
    sides = _compared(again)
    if sides is None:
        return None
    results = once.results[:carried]
    counter, ahead = _counter(n, results, _plain(sides[0]))
    bound = _size(n, results, operands, _plain(sides[1]))
    start = None if counter is None else _number(n, operands[counter])
    return None if start is None or bound is None else _Count(start, bound, ahead)


def _compared(value: Value) -> tuple[Value, Value] | None:
    """The smaller and the larger side of a comparison."""
    if value.op not in (ops.less, ops.greater):
        return None
    left, right = value.operands if value.op is ops.less else value.operands[::-1]
    return left, right


def _asked(n: Site, value: Value) -> tuple[int, Size] | None:
    """The number and the size that the first condition compares."""
    sides = _compared(value)
    if sides is None:
        return None
    start, sizes = _number(n, sides[0]), n.sizes(_plain(sides[1]))
    return None if start is None or sizes is None or len(sizes) != 1 else (start, sizes[0])


def _plain(value: Value) -> Value:
    """A number without the casts and changes of rank that keep it."""
    while value.op in _FREE or (value.op is ops.cast and value.dtype in _EXACT):
        value = value.operands[0]
    return value


def _counter(n: Site, results: Sequence[Value], value: Value) -> tuple[int | None, int]:
    """The index of the carry that grows by 1 in every trip, and how far the value is ahead of it."""
    at = _argument(value)
    ahead = 0 if at is not None else 1
    if at is None:
        at = _successor(n, value)
    if at is None or at >= len(results) or _successor(n, _plain(results[at])) != at:
        return None, 0
    return at, ahead


def _successor(n: Site, value: Value) -> int | None:
    """The index of the argument to which this value adds 1."""
    if value.op is not ops.add or value.dtype not in _EXACT:
        return None
    for a, b in (value.operands, value.operands[::-1]):
        at = _argument(_plain(a))
        if at is not None and _number(n, b) == 1:
            return at
    return None


def _argument(value: Value) -> int | None:
    return int(value.attrs["index"]) if value.op is leaf.ARGUMENT else None


def _size(n: Site, results: Sequence[Value], operands: Sequence[Value], value: Value) -> Size | None:
    """The size that a value inside is in every trip."""
    at = _argument(value)
    if at is not None:
        if at < len(results) and _argument(_plain(results[at])) != at:
            return None
        value = _plain(operands[at])
    found = n.sizes(value)
    return found[0] if found is not None and len(found) == 1 else None


def _number(n: Site, value: Value) -> int | None:
    """The integer that a value is in every run."""
    known = n.known(_plain(value))
    if known is None or known.size != 1:
        return None
    number = known.item()
    return int(number) if isinstance(number, int | float) and number == int(number) else None

"""How often a loop runs whose condition counts: `i < n`, where `n` is a size and `i` grows by 1 in every trip.

Keras exports its recurrent layers as such loops. With its trip count a loop is a scan, whose outputs have known sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.shared.site import Site
from dovetail.ir import leaf
from dovetail.ir.dim import Size, largest
from dovetail.ir.dtype import DType, f32, f64, i32, i64
from dovetail.ir.graph import Subgraph
from dovetail.ir.value import Value

_EXACT: tuple[DType, ...] = (i32, i64, f32, f64)
"""They hold every number of trips that a loop may have (MOST_TRIPS)."""
_FREE = (ops.squeeze, ops.unsqueeze, ops.reshape)


def trip_count(n: Site, once: Subgraph, carries: Sequence[Value], captures: Sequence[Value], flag: int) -> Size | None:
    """The number of trips; None where the condition does not count to a size.

    `once` is the body, and `flag` the index of the carry that says whether another trip follows.
    """
    operands = (*carries, *captures)
    again = _plain(once.results[flag])
    if again.op is ops.greater:
        right, left = again.operands
    elif again.op is ops.less:
        left, right = again.operands
    else:
        return None
    counter, ahead = _counter(n, once.results[: len(carries)], _plain(left))
    bound = _size(n, once.results[: len(carries)], operands, _plain(right))
    if counter is None or bound is None:
        return None
    start = _number(n, operands[counter])
    if start is None:
        return None
    first = n.known(operands[flag])
    if first is not None:
        return largest(bound - start - ahead + 1, 1) if bool(first.item()) else 0
    asked = _plain(operands[flag])
    if ahead != 1 or asked.op is not ops.less or _number(n, asked.operands[0]) != start:
        return None
    size = n.sizes(_plain(asked.operands[1]))
    return largest(bound - start, 0) if size is not None and size == (bound,) else None


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

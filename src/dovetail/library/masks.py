"""Which keys a query may see, spelled from positions so that it can stand in a body."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.ops.question import size_of


def causal(q: Value, k: Value, *, rank: int = 2) -> Value:
    """Keys up to the query's own position, counted from the first key: bool[.., sq, sk] with 1s in front."""
    keys, queries = _positions(q, k, rank)
    return ops.less_equal(keys, queries)


def sliding(q: Value, k: Value, *, window: int, rank: int = 2) -> Value:
    """The last `window` keys up to the query's own position: bool[.., sq, sk] with 1s in front."""
    keys, queries = _positions(q, k, rank)
    return ops.bit_and(ops.greater(keys, queries - window), ops.less_equal(keys, queries))


def _positions(q: Value, k: Value, rank: int) -> tuple[Value, Value]:
    """Positions of the keys along the last axis, of the queries along the one before it."""
    ones = tuple(range(-rank, -2))
    keys = ops.unsqueeze(ops.iota(size=size_of(k, -2)), axes=(*ones, -2))
    queries = ops.unsqueeze(ops.iota(size=size_of(q, -2)), axes=(*ones, -1))
    return keys, queries

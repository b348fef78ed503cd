"""How a weight is applied before it is known whether a bias stands behind it."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import UnwrittenError
from dovetail.ir.value import Value
from dovetail.library.linear import linear


def projected(x: Value, w: Value, b: Value | None) -> Value:
    """x @ w, or that with a bias in its epilogue."""
    return x @ w if b is None else linear(x, w, b)


def queries_keys_values(
    x: Value, weights: tuple[Value, Value | None, Value | None], biases: tuple[Value | None, ...]
) -> tuple[Value, Value, Value]:
    """Three projections of one input: by one weight with all their columns side by side, or by one each."""
    wq, wk, wv = weights
    bq, bk, bv = biases
    each_has_one(wk, bq, bk)
    if wk is None or wv is None:
        joined = projected(x, wq, bq)
        q, k, v = (ops.part(joined, axis=-1, index=index, parts=3) for index in range(3))
        return q, k, v
    return projected(x, wq, bq), projected(x, wk, bk), projected(x, wv, bv)


def each_has_one(wk: Value | None, bq: Value | None, bk: Value | None) -> None:
    """Refuse biases for some of the weights."""
    if (bk is None) != (wk is None or bq is None):
        raise UnwrittenError("biases for some of queries, keys and values", hint="pass none, or one for each weight")

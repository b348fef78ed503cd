"""Examples of canonical rules around loops."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.graph import Subgraph
from dovetail.ir.value import Value
from dovetail.ops.control import scan_
from tests.passes.example import Example


def _first(x: Value) -> Value:
    return leaf.input("first", x.dtype[3, 4])


def _still(x: Value) -> Value:
    return leaf.input("still", x.dtype[4])


def _carried(x: Value) -> Value:
    """A scan whose second carry never changes."""
    types = (_first(x).tensor, _still(x).tensor, x.dtype[3, 4])
    total, still, slice_ = (leaf.argument(i, t) for i, t in enumerate(types))
    body = Subgraph(types, (total + slice_ * still, still))
    made = scan_(_first(x), _still(x), x, body=body, carries=2, scanned=1)
    return leaf.item(made, 0) + leaf.item(made, 1)


def _captured(x: Value) -> Value:
    types = (_first(x).tensor, x.dtype[3, 4], _still(x).tensor)
    total, slice_, still = (leaf.argument(i, t) for i, t in enumerate(types))
    body = Subgraph(types, (total + slice_ * still,))
    made = scan_(_first(x), x, _still(x), body=body, carries=1, scanned=1)
    return leaf.item(made, 0) + _still(x)


def _weights(x: Value) -> tuple[Value, Value]:
    return leaf.input("v", x.dtype[3, 5]), leaf.input("w", x.dtype[5, 4])


def _inside(x: Value) -> Value:
    v, w = _weights(x)
    types = (_first(x).tensor, x.dtype[3, 4], v.tensor, w.tensor)
    total, slice_, left, right = (leaf.argument(i, t) for i, t in enumerate(types))
    body = Subgraph(types, (total + slice_ * ops.relu(ops.matmul(left, right)),))
    return leaf.item(scan_(_first(x), x, v, w, body=body, carries=1, scanned=1), 0)


def _outside(x: Value) -> Value:
    v, w = _weights(x)
    product = ops.relu(ops.matmul(v, w))
    types = (_first(x).tensor, x.dtype[3, 4], v.tensor, w.tensor, product.tensor)
    arguments = [leaf.argument(i, t) for i, t in enumerate(types)]
    body = Subgraph(types, (arguments[0] + arguments[1] * arguments[4],))
    return leaf.item(scan_(_first(x), x, v, w, product, body=body, carries=1, scanned=1), 0)


def _reduced_inside(x: Value) -> Value:
    """A function and a sum of a matrix."""
    table = leaf.input("table", x.dtype[6, 4])
    types = (_first(x).tensor, x.dtype[3, 4], table.tensor)
    total, slice_, read = (leaf.argument(i, t) for i, t in enumerate(types))
    weights = ops.reduce_sum(ops.exp(read), axes=(-2,))
    body = Subgraph(types, (total + slice_ * weights,))
    return leaf.item(scan_(_first(x), x, table, body=body, carries=1, scanned=1), 0)


def _reduced_outside(x: Value) -> Value:
    table = leaf.input("table", x.dtype[6, 4])
    weights = ops.reduce_sum(ops.exp(table), axes=(-2,))
    types = (_first(x).tensor, x.dtype[3, 4], table.tensor, weights.tensor)
    total, slice_, _, given = (leaf.argument(i, t) for i, t in enumerate(types))
    body = Subgraph(types, (total + slice_ * given,))
    return leaf.item(scan_(_first(x), x, table, weights, body=body, carries=1, scanned=1), 0)


LOOPS: tuple[Example, ...] = (
    Example("unchanged_carry_as_capture", _carried, _captured, shape=(2, 3, 4)),
    Example("work_before_the_loop", _inside, _outside, shape=(2, 3, 4)),
    Example("work_before_the_loop", _reduced_inside, _reduced_outside, shape=(2, 3, 4)),
)

"""An example for each canonical rule about windows, learnt scales and channels as vision models have them."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_
from dovetail.ir.value import Value
from dovetail.ops.build import swap
from tests.passes.example import Example, const


def _of_heads(x: Value) -> Value:
    """A factor for each head."""
    return leaf.input("s", x.dtype[3, 1, 1])


def _of_queries(x: Value) -> Value:
    """A factor for each query, between 1 and 3."""
    return ops.tanh(leaf.input("s", x.dtype[3, 4, 1])) + const(2, x)


def _keys(x: Value) -> Value:
    return leaf.input("k", x.dtype[2, 3, 5, 2])


def _apart(x: Value, axis: int) -> Value:
    return ops.split(x, axis=axis, parts=2)


def _windows(x: Value) -> Value:
    """[batch * windows, rows, features]."""
    return ops.merge(x, axis=-3)


def _heads(x: Value) -> Value:
    """[.., heads, rows, features of a head], with an axis that comes, is repeated, and goes."""
    half = ops.part(ops.concat(x, x, axis=-1), axis=-1, index=0, parts=2)
    found = ops.relu(ops.permute(ops.split(half, axis=-1, parts=2), order=(-2, -3, -1)))
    repeated = ops.relu(ops.expand(ops.unsqueeze(found, axes=(-1,)), axis=-1, size=3))
    return ops.squeeze(ops.reduce_max(repeated, axes=(-1,)), axes=(-1,))


def _scores(x: Value) -> Value:
    """Scores of six queries and four keys."""
    return ops.matmul(ops.tanh(x), swap(ops.tanh(leaf.input("k", x.dtype[2, 4, 3])), -1, -2))


def _cut(found: Value) -> Value:
    """Queries as an image of 2 rows and keys as one of 2 columns."""
    return ops.split(ops.split(found, axis=-1, parts=2), axis=-3, parts=2)


def _whole(found: Value) -> Value:
    return ops.merge(ops.merge(found, axis=-1), axis=-2)


def _filtered(x: Value) -> Value:
    """Rows times filters."""
    return ops.matmul(ops.merge(x, axis=-1, count=3), swap(ops.merge(_filters(x), axis=-1, count=3), -1, -2))


def _filters(x: Value) -> Value:
    return leaf.input("w", x.dtype[5, 3, 2, 2])


VISION: tuple[Example, ...] = (
    Example(
        "factor_on_queries",
        lambda x: _of_heads(x) * ops.matmul(x, swap(_keys(x), -1, -2)),
        lambda x: ops.matmul(x * _of_heads(x), swap(_keys(x), -1, -2)),
        shape=(2, 3, 4, 2),
    ),
    Example(
        "factor_on_queries",
        lambda x: (ops.matmul(ops.tanh(x), swap(_keys(x), -1, -2)) * const(0.5, x)) / _of_queries(x),
        lambda x: ops.matmul(ops.tanh(x) / _of_queries(x), swap(_keys(x), -1, -2)) * const(0.5, x),
        shape=(2, 3, 4, 2),
    ),
    Example(
        "bias_of_rows_and_columns",
        lambda x: _whole(
            _cut(_scores(x)) + leaf.input("h", x.dtype[2, 3, 2, 1]) + leaf.input("w", x.dtype[2, 3, 1, 2])
        ),
        lambda x: (
            _scores(x)
            + _whole(
                ops.unsqueeze(leaf.input("h", x.dtype[2, 3, 2, 1]) + leaf.input("w", x.dtype[2, 3, 1, 2]), axes=(-5,))
            )
        ),
        shape=(2, 6, 3),
    ),
    Example(
        "bias_of_rows_and_columns",
        lambda x: _whole(leaf.input("h", x.dtype[2, 2, 3, 1, 1]) + _cut(_scores(x))),
        lambda x: _scores(x) + _whole(leaf.input("h", x.dtype[2, 2, 3, 1, 1])),
        shape=(2, 6, 3),
    ),
    Example(
        "conv_of_all_pixels",
        lambda x: ops.conv(ops.tanh(x), _filters(x)) + leaf.param("b", x.dtype[5, 1, 1]),
        lambda x: ops.unsqueeze(_filtered(ops.tanh(x)), axes=(-2, -1)) + leaf.param("b", x.dtype[5, 1, 1]),
        shape=(4, 3, 2, 2),
    ),
    Example(
        "pixels_later",
        lambda x: ops.where(
            leaf.input("c", bool_[5, 1, 1]),
            ops.relu(ops.unsqueeze(_filtered(x), axes=(-2, -1))),
            leaf.input("b", x.dtype[4, 5, 1, 1]),
        ),
        lambda x: ops.unsqueeze(
            ops.where(
                ops.squeeze(leaf.input("c", bool_[5, 1, 1]), axes=(-2, -1)),
                ops.relu(_filtered(x)),
                ops.squeeze(leaf.input("b", x.dtype[4, 5, 1, 1]), axes=(-2, -1)),
            ),
            axes=(-2, -1),
        ),
        shape=(4, 3, 2, 2),
    ),
    Example(
        "split_of_joined",
        lambda x: _apart(ops.relu(_heads(ops.relu(_windows(x)))), -4),
        lambda x: ops.relu(_heads(ops.relu(_apart(_windows(x), -3)))),
        shape=(2, 3, 2, 4),
    ),
    Example(
        "split_of_joined",
        lambda x: _apart(ops.relu(ops.merge(swap(_heads(ops.relu(_windows(x))), -2, -3), axis=-1)), -3),
        lambda x: ops.relu(ops.merge(swap(_heads(ops.relu(_apart(_windows(x), -3))), -2, -3), axis=-1)),
        shape=(2, 3, 2, 4),
    ),
)
"""What each rule makes of an example."""

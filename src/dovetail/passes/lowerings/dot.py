"""General contraction as a batched matmul between movements."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.passes.claims import Claims


def lower_dot(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """Batch axes to the front, contracted axes between, the rest merged into rows and columns."""
    x, y = operands
    left, right = _from_front(value.attrs["left"], x), _from_front(value.attrs["right"], y)
    left_batch, right_batch = _from_front(value.attrs["left_batch"], x), _from_front(value.attrs["right_batch"], y)
    rows = [a for a in range(x.rank) if a not in left and a not in left_batch]
    columns = [a for a in range(y.rank) if a not in right and a not in right_batch]
    batch = _sizes(x, left_batch)
    inner = product(_sizes(x, left))
    a = build.reshape(build.transpose(x, [*left_batch, *rows, *left]), (*batch, product(_sizes(x, rows)), inner))
    b = build.reshape(
        build.transpose(y, [*right_batch, *right, *columns]), (*batch, inner, product(_sizes(y, columns)))
    )
    return build.reshape(ops.matmul(a, b), value.shape)


def _from_front(axes: tuple[int, ...], of: Value) -> list[int]:
    return [a + of.rank for a in axes]


def _sizes(of: Value, axes: list[int]) -> tuple[Size, ...]:
    return tuple(of.shape[a] for a in axes)

"""Matrix products whose factors may be vectors."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.ops import build


def matmul_or_dot(x: Value, y: Value) -> Value:
    """Matrix product over the last two axes; a vector is a row on the left, a column on the right."""
    left = ops.unsqueeze(x, axes=(-2,)) if x.rank == 1 else x
    right = ops.unsqueeze(y, axes=(-1,)) if y.rank == 1 else y
    gone = tuple(axis for axis, of in ((-2, x), (-1, y)) if of.rank == 1)
    return build.squeeze_dims(left @ right, gone) if gone else left @ right


__all__ = ["matmul_or_dot"]

"""matmul_add: a matmul that adds to a tensor of its own shape."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.declare import Change, fused_op, typed
from dovetail.ir.value import Value

Transposed = Literal[False, True]


@fused_op(shapes="x[*, m, k] w[k, n] d[*, m, n]")
def matmul_add(
    x: Value, w: Value, d: Value, *, transpose_x: Transposed = False, transpose_w: Transposed = False
) -> Value:
    """x @ w + d, with the last two axes of x or w swapped as they are read: one kernel, one write."""
    left = ops.permute(x, order=(-1, -2)) if transpose_x else x
    right = ops.permute(w, order=(-1, -2)) if transpose_w else w
    return left @ right + d


@matmul_add.requires(
    reason="{d.type} is added to the product of {x.type} and {w.type}, which makes {result.type}; the kernel starts "
    "from a tensor of its own shape",
    hint="give the addend the shape of the product",
)
def addend_has_the_product_shape(
    x: Value, w: Value, d: Value, result: Value, transpose_x: Transposed, transpose_w: Transposed
) -> bool:
    rows = x.shape[-1 if transpose_x else -2]
    columns = w.shape[-2 if transpose_w else -1]
    if d.rank < 2 or d.shape[-2] != rows or d.shape[-1] != columns:
        return False
    return d.shape == result.shape and (d.shape[:-2] == x.shape[:-2] or d.shape[:-2] == w.shape[:-2])


@matmul_add.remedy(addend_has_the_product_shape)
def addend_in_the_product_shape(
    x: Value, w: Value, d: Value, transpose_x: Transposed, transpose_w: Transposed
) -> Change:
    """The addend comes in the shape of the product."""
    rows = x.shape[-1 if transpose_x else -2]
    columns = w.shape[-2 if transpose_w else -1]
    leading = x.shape[:-2] if x.rank >= w.rank else w.shape[:-2]
    return {"d": typed(d, shape=(*leading, rows, columns))}

"""Products and convolutions."""

from __future__ import annotations

import re

from dovetail import ops
from dovetail.frontends.jax.importing import Node, rule
from dovetail.frontends.jax.rules.shapes import spread
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("stablehlo.dot_general")
def dot_general(n: Node) -> Value:
    x, y = (ops.cast(v, dtype=n.dtype) if v.dtype is not n.dtype else v for v in n.operands)
    axes = n.axes("dot_dimension_numbers")
    none: tuple[int, ...] = ()
    left, right = axes.get("lhs_contracting_dimensions", none), axes.get("rhs_contracting_dimensions", none)
    batch = axes.get("lhs_batching_dimensions", none), axes.get("rhs_batching_dimensions", none)
    if min(x.rank, y.rank) > 1 and left == (x.rank - 1,) and right == (y.rank - 2,):
        leading = tuple(range(y.rank - 2))
        if batch == (leading, leading) and (y.rank == 2 or x.rank == y.rank):
            return ops.matmul(x, y)
    if len(left) == 1:
        found = _of_matrices(x, y, left[0], right[0], *batch)
        if found is not None:
            sides = ((x, left[0], batch[0]), (y, right[0], batch[1]))
            free = [s for v, at, among in sides for a, s in enumerate(v.shape) if a != at and a not in among]
            shape = (*(x.shape[a] for a in batch[0]), *free)
            return build.reshape(found, shape) if found.shape != shape else found
    return ops.dot(
        x,
        y,
        left=tuple(a - x.rank for a in left),
        right=tuple(a - y.rank for a in right),
        left_batch=tuple(a - x.rank for a in batch[0]),
        right_batch=tuple(a - y.rank for a in batch[1]),
    )


def _of_matrices(
    x: Value, y: Value, left: int, right: int, left_batch: tuple[int, ...], right_batch: tuple[int, ...]
) -> Value | None:
    """A contraction along one axis as a product of matrices, where axes of more than one element allow it."""
    rows = [a for a in range(x.rank) if a != left and a not in left_batch and x.shape[a] != 1]
    columns = [a for a in range(y.rank) if a != right and a not in right_batch and y.shape[a] != 1]
    if len(columns) > 1 or (len(rows) > 1 and left_batch):
        return None
    if not columns or not rows:
        return None  # of a vector
    if len(rows) == 1 and rows[0] > left and columns[0] < right:
        # Both would be turned: the product is turned instead, as attention has values and weights.
        first, second = _bare(y, [*right_batch, *columns, right]), _bare(x, [*left_batch, left, *rows])
        return build.swap(ops.matmul(first, second), -1, -2)
    return ops.matmul(_bare(x, [*left_batch, *rows, left]), _bare(y, [*right_batch, right, *columns]))


def _bare(x: Value, axes: list[int]) -> Value:
    """These axes of a tensor in this order; all others have one element."""
    others = [a for a in range(x.rank) if a not in axes]
    kept = [a for a in range(x.rank) if a in axes]
    y = build.squeeze_dims(x, others) if others else x
    return build.transpose(y, [kept.index(a) for a in axes]) if kept != axes else y


@rule("stablehlo.convolution")
def convolution(n: Node) -> Value:
    """Axes are brought into the order [batch, channels, spatial], and back."""
    x, w = (ops.cast(v, dtype=n.dtype) if v.dtype is not n.dtype else v for v in n.operands)
    if int(n.attrs.get("batch_group_count", 1)) != 1:
        raise n.unsupported("groups of the batch, as gradients of grouped convolutions have")
    of_x, of_w, of_y = (
        [word.strip() for word in part.split(",")]
        for part in re.findall(r"\[([^\]]*)\]", str(n.attrs["dimension_numbers"]))
    )
    count = x.rank - 2
    spatial = [str(i) for i in range(count)]
    x = build.transpose(x, [of_x.index(a) for a in ("b", "f", *spatial)])
    w = build.transpose(w, [of_w.index(a) for a in ("o", "i", *spatial)])
    ones = (1,) * count
    if any(n.attrs.get("window_reversal", ())):
        w = ops.flip(w, axes=tuple(i - count for i, turned in enumerate(n.attrs["window_reversal"]) if turned))
    between = [0, 0, *(step - 1 for step in n.attrs.get("lhs_dilation", ones))]
    x = spread(x, leaf.scalar(0, x.dtype), between)
    around = n.attrs["padding"].tolist() if "padding" in n.attrs else [[0, 0]] * count
    # A convolution pads with zeros and does not crop.
    crop = [[min(0, amount) for amount in pair] for pair in around]
    x = build.pad_dims(x, [0, 0, *(a for a, _ in crop)], [0, 0, *(b for _, b in crop)])
    y = ops.conv(
        x,
        w,
        strides=tuple(n.attrs.get("window_strides", ones)),
        dilations=tuple(n.attrs.get("rhs_dilation", ones)),
        padding=(*(max(a, 0) for a, _ in around), *(max(b, 0) for _, b in around)),
        groups=int(n.attrs.get("feature_group_count", 1)),
    )
    found = ["b", "f", *spatial]
    return build.transpose(y, [found.index(a) for a in of_y])

"""Products and convolutions."""

from __future__ import annotations

import re

from dovetail import ops
from dovetail.frontends.jax.importing import Rule, Site
from dovetail.frontends.jax.rules.shapes import spread
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops import build


def _dot_general(n: Site) -> Value:
    x, y = (ops.cast(v, dtype=n.type.dtype) if v.dtype is not n.type.dtype else v for v in n.operands)
    axes = n.axes("dot_dimension_numbers")
    none: tuple[int, ...] = ()
    left, right = axes.get("lhs_contracting_dimensions", none), axes.get("rhs_contracting_dimensions", none)
    batch = axes.get("lhs_batching_dimensions", none), axes.get("rhs_batching_dimensions", none)
    if min(x.rank, y.rank) > 1 and left == (x.rank - 1,) and right == (y.rank - 2,):
        leading = tuple(range(y.rank - 2))
        if batch == (leading, leading) and (y.rank == 2 or x.rank == y.rank):
            return ops.matmul(x, y)
    return ops.dot(
        x,
        y,
        left=tuple(a - x.rank for a in left),
        right=tuple(a - y.rank for a in right),
        left_batch=tuple(a - x.rank for a in batch[0]),
        right_batch=tuple(a - y.rank for a in batch[1]),
    )


def _convolution(n: Site) -> Value:
    """Axes are brought into the order [batch, channels, spatial], and back."""
    x, w = (ops.cast(v, dtype=n.type.dtype) if v.dtype is not n.type.dtype else v for v in n.operands)
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


RULES: dict[str, Rule] = {"stablehlo.dot_general": _dot_general, "stablehlo.convolution": _convolution}

__all__ = ["RULES"]

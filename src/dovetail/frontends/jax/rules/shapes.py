"""Operations that move elements, and those that make tensors from sizes."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.jax.importing import Made, Rule, Site
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops import build


def _broadcast(n: Site) -> Value:
    """Axis i of the operand is axis dims[i] of the result."""
    return placed(n.x, n.attrs["broadcast_dimensions"], n.type.shape)


def placed(x: Value, axes: Sequence[int], shape: Sequence[Size]) -> Value:
    """x with its axes put at these places of a shape, and repeated along the others."""
    order = sorted(range(x.rank), key=lambda i: axes[i])
    y = build.transpose(x, order) if order != list(range(x.rank)) else x
    others = [a for a in range(len(shape)) if a not in axes]
    return build.broadcast_to(build.expand_dims(y, others), tuple(shape))


def _dynamic_broadcast(n: Site) -> Value:
    """The same to a shape that symbols decide."""
    return placed(n.x, n.attrs["broadcast_dimensions"], n.sizes(n.operands[1]))


def _dimension_size(n: Site) -> Value:
    return ops.cast(ops.extent(size=n.x.shape[int(n.attrs["dimension"])]), dtype=n.dtype)


def _dynamic_iota(n: Site) -> Value:
    axis, sizes = int(n.attrs["iota_dimension"]), n.sizes(n.x)
    return placed(ops.iota(size=sizes[axis], dtype=n.dtype), (axis,), sizes)


def _nothing(n: Site) -> Made:
    """A check that the sizes of the arguments fit: their types say it."""
    return ()


def _slice(n: Site) -> Value:
    x = n.x
    bounds = zip(n.attrs["start_indices"], n.attrs["limit_indices"], n.attrs["strides"], strict=True)
    for at, (start, stop, step) in enumerate(bounds):
        x = build.cut(x, at - x.rank, start, stop, step)
    return x


def _pad(n: Site) -> Value:
    x, value = n.operands
    x = spread(x, value, n.attrs["interior_padding"])
    return build.pad_dims(x, n.attrs["edge_padding_low"], n.attrs["edge_padding_high"], value)


def spread(x: Value, value: Value, between: Sequence[int]) -> Value:
    """x with this many elements of one value between two neighbours of each axis."""
    for at, count in enumerate(between):
        size = x.shape[at]
        if count and isinstance(size, int) and size > 1:
            y = build.expand_dims(x, at + 1)
            y = ops.pad(y, value, axis=at + 1 - y.rank, after=count)
            merged = ops.merge(y, axis=at + 1 - y.rank)
            x = build.cut(merged, at - x.rank, 0, size + (size - 1) * count)
    return x


def _iota(n: Site) -> Value:
    axis = int(n.attrs["iota_dimension"])
    return placed(ops.iota(size=n.type.shape[axis], dtype=n.dtype), (axis,), n.type.shape)


def _same(n: Site) -> Made:
    return n.operands


RULES: dict[str, Rule] = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.concatenate": lambda n: ops.concat(*n.operands, axis=int(n.attrs["dimension"]) - n.x.rank),
    "stablehlo.constant": lambda n: leaf.constant(n.attrs["value"]),
    "stablehlo.dynamic_broadcast_in_dim": _dynamic_broadcast,
    "stablehlo.dynamic_iota": _dynamic_iota,
    "stablehlo.dynamic_reshape": lambda n: build.reshape(n.x, n.sizes(n.operands[1])),
    "stablehlo.get_dimension_size": _dimension_size,
    "stablehlo.iota": _iota,
    "stablehlo.optimization_barrier": _same,
    "stablehlo.pad": _pad,
    "stablehlo.reshape": lambda n: ops.reshape(n.x, n.type.shape),
    "stablehlo.reverse": lambda n: ops.flip(n.x, axes=tuple(a - n.x.rank for a in n.attrs["dimensions"])),
    "stablehlo.slice": _slice,
    "stablehlo.transpose": lambda n: build.transpose(n.x, n.attrs["permutation"]),
    "custom_call @Sharding": _same,
    "custom_call @shape_assertion": _nothing,
    "custom_call @annotate_device_placement": _same,
    "sdy.sharding_constraint": _same,
}

__all__ = ["RULES", "placed", "spread"]

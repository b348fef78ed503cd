"""Operations that move elements, and those that make tensors from sizes."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.jax.importing import Node, rule
from dovetail.frontends.shared.rule import Made
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("stablehlo.broadcast_in_dim")
def broadcast(n: Node) -> Value:
    """Axis i of the operand is axis dims[i] of the result."""
    return placed(n.x, n.attrs["broadcast_dimensions"], n.type.shape)


def placed(x: Value, axes: Sequence[int], shape: Sequence[Size]) -> Value:
    """x with its axes put at these places of a shape, and repeated along the others."""
    order = sorted(range(x.rank), key=lambda i: axes[i])
    y = build.transpose(x, order) if order != list(range(x.rank)) else x
    others = [a for a in range(len(shape)) if a not in axes]
    return build.broadcast_to(build.expand_dims(y, others), tuple(shape))


@rule("stablehlo.dynamic_broadcast_in_dim")
def dynamic_broadcast(n: Node) -> Value:
    """The same to a shape that symbols decide."""
    return placed(n.x, n.attrs["broadcast_dimensions"], n.shape_in(n.operands[1]))


@rule("stablehlo.get_dimension_size")
def dimension_size(n: Node) -> Value:
    return ops.cast(ops.extent(size=n.x.shape[int(n.attrs["dimension"])]), dtype=n.dtype)


@rule("stablehlo.dynamic_iota")
def dynamic_iota(n: Node) -> Value:
    axis, sizes = int(n.attrs["iota_dimension"]), n.shape_in(n.x)
    return placed(ops.iota(size=sizes[axis], dtype=n.dtype), (axis,), sizes)


@rule("custom_call @shape_assertion")
def nothing(n: Node) -> Made:
    """A check that the sizes of the arguments fit: their types say it."""
    return ()


@rule("stablehlo.slice")
def slice_(n: Node) -> Value:
    x = n.x
    bounds = zip(n.attrs["start_indices"], n.attrs["limit_indices"], n.attrs["strides"], strict=True)
    for at, (start, stop, step) in enumerate(bounds):
        x = build.cut(x, at - x.rank, start, stop, step)
    return x


@rule("stablehlo.pad")
def pad(n: Node) -> Value:
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


@rule("stablehlo.iota")
def iota(n: Node) -> Value:
    axis = int(n.attrs["iota_dimension"])
    return placed(ops.iota(size=n.type.shape[axis], dtype=n.dtype), (axis,), n.type.shape)


@rule(
    "stablehlo.optimization_barrier",
    "sdy.sharding_constraint",
    "custom_call @Sharding",
    "custom_call @annotate_device_placement",
)
def same(n: Node) -> Made:
    return n.operands


@rule("stablehlo.concatenate")
def concatenate(n: Node) -> Value:
    return ops.concat(*n.operands, axis=int(n.attrs["dimension"]) - n.x.rank)


@rule("stablehlo.constant")
def constant(n: Node) -> Value:
    return leaf.constant(n.attrs["value"])


@rule("stablehlo.dynamic_reshape")
def dynamic_reshape(n: Node) -> Value:
    return build.reshape(n.x, n.shape_in(n.operands[1]))


@rule("stablehlo.reshape")
def reshape(n: Node) -> Value:
    return ops.reshape(n.x, n.type.shape)


@rule("stablehlo.reverse")
def reverse(n: Node) -> Value:
    return ops.flip(n.x, axes=tuple(a - n.x.rank for a in n.attrs["dimensions"]))


@rule("stablehlo.transpose")
def transpose(n: Node) -> Value:
    return build.transpose(n.x, n.attrs["permutation"])


__all__ = ["placed", "spread"]

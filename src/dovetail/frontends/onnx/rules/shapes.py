"""Shapes as tensors, and tensors of a given shape."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.rule import Sizes, collected, rule
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import i64
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops import build


def sizes_value(sizes: tuple[Size, ...]) -> Value:
    """Sizes as a vector of i64."""
    if not sizes:
        return build.zeros((0,), i64)
    return build.stack([ops.extent(size=s) if isinstance(s, Dim) else leaf.scalar(s, i64) for s in sizes])


@rule("Shape")
def shape(n: Node, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    """The sizes of the axes from start to end."""
    return sizes_value(x.shape[start:end])


@rule("Size")
def size(n: Node, x: Value) -> Value:
    """The number of elements."""
    count = x.tensor.count
    return ops.extent(size=count) if isinstance(count, Dim) else leaf.scalar(count, i64)


@rule("ConstantOfShape")
def constant_of_shape(n: Node, shape: Sizes, *, value: Array | None = None) -> Value:
    """One number in a shape that is computed."""
    one = leaf.scalar(0.0, ops.f32) if value is None else build.reshape(leaf.constant(value), ())
    return build.broadcast_to(one, shape)


RULES = collected(globals())

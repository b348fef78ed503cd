"""Shapes as tensors, and tensors of a given shape."""

from __future__ import annotations

import math

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.computed import filled, numbers_in, size_value, sizes_or_run
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import DType, f32, f64, i64
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops import build


def sizes_value(sizes: tuple[Size, ...]) -> Value:
    """Sizes as a vector of i64."""
    if not sizes:
        return build.zeros((0,), i64)
    return build.stack([size_value(s) for s in sizes])


@rule("Shape")
def shape(n: Node, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    """The sizes of the axes from start to end."""
    return sizes_value(x.shape[start:end])


@rule("Size")
def size(n: Node, x: Value) -> Value:
    """The number of elements."""
    return size_value(x.tensor.count)


@rule("ConstantOfShape")
def constant_of_shape(n: Node, shape: Value, *, value: Array | None = None) -> Value:
    """A tensor of a computed shape, filled with one number."""
    if value is not None and value.size != 1:
        raise n.malformed(f"a value of {value.size} elements")
    one = leaf.scalar(0.0, f32) if value is None else leaf.constant(value.reshape(()))
    sizes = sizes_or_run(n, shape, "shape")
    if sizes is None:
        return filled(n, one, numbers_in(n, shape, "shape"), "constant_of_shape")
    if any(isinstance(s, int) and s < 0 for s in sizes):
        raise n.malformed(f"a shape of {', '.join(map(str, sizes))}")
    return build.broadcast_to(one, sizes)


@rule("Range")
def range_(n: Node, start: Value, limit: Value, delta: Value) -> Value:
    """start, start + delta, … up to before limit."""
    start, limit, delta = (build.reshape(v, ()) for v in (start, limit, delta))
    found = [sizes_or_run(n, v, name) for v, name in ((start, "start"), (limit, "limit"), (delta, "delta"))]
    sizes = [None if f is None else f[0] for f in found]
    if sizes[2] == 0:
        raise n.malformed("a delta of 0")
    if sizes[0] is not None and sizes[1] is not None and isinstance(sizes[2], int):
        return build.arange(sizes[0], sizes[1], sizes[2], dtype=start.dtype)
    known = [n.known(v) for v in (start, limit, delta)]
    numbers = [k.item() for k in known if k is not None]
    if len(numbers) == 3 and not any(isinstance(x, Dim) for x in numbers):
        return leaf.constant(_stepped(n, start.dtype, *map(float, numbers)))
    steps = n.counted(_steps_in_run(start, limit, delta), "range")
    return start + ops.cast(steps, dtype=start.dtype) * delta


def _stepped(n: Node, dtype: DType, start: float, limit: float, delta: float) -> Array:
    if not delta or not math.isfinite((limit - start) / delta):
        raise n.malformed(f"a range from {start} to {limit} in steps of {delta}")
    count = math.ceil((limit - start) / delta)
    if count > MOST_COUNTED:
        raise n.malformed(f"a range of {count} numbers")
    return (start + np.arange(max(count, 0)) * delta).astype(dtype.numpy)


MOST_COUNTED = 2**22
"""A range of floats is written as a constant up to here."""


def _steps_in_run(start: Value, limit: Value, delta: Value) -> Value:
    """How many steps lead from start to before limit."""
    apart, step = (ops.cast(v, dtype=f64) for v in (limit - start, delta))
    return ops.cast(ops.ceil(ops.maximum(apart / step, 0.0)), dtype=i64)


@rule("Trilu")
def trilu(n: Node, x: Value, k: Value | None = None, *, upper: bool = True) -> Value:
    """A triangle of each matrix, 0 elsewhere; k is the offset of its diagonal to the right of the main one."""
    if k is None:
        return build.trilu(x, upper=upper)
    known = n.sizes(k)
    if known is not None and isinstance(known[0], int):
        return build.trilu(x, upper=upper, offset=known[0])
    rows, columns = (ops.iota(size=s) for s in x.shape[-2:])
    diagonal = ops.unsqueeze(rows, axes=(-1,)) + build.reshape(k, ())
    inside = ops.less_equal(diagonal, columns) if upper else ops.greater_equal(diagonal, columns)
    return ops.where(inside, x, 0)


@rule("EyeLike")
def eye_like(n: Node, x: Value, *, dtype: DType | None = None, k: int = 0) -> Value:
    """1 on a diagonal of a matrix of the same shape, 0 elsewhere."""
    rows, columns = x.shape
    return ops.eye(rows=rows, columns=columns, offset=k, dtype=dtype or x.dtype)

"""Shapes that a run computes: tensors whose sizes are counted by the run, and known nowhere before."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.onnx.node import Node
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import build

MOST_FIXED = 64
"""An integer input of so many elements at most says how a model is run; a larger one is what it is run on."""


def sizes_or_run(n: Node, value: Value, name: str) -> tuple[Size, ...] | None:
    """The sizes that a value holds, or None where the run computes them. A caller's own choice has to be fixed."""
    found = n.sizes(value)
    if found is None and _is_chosen(value):
        raise n.needs(value, name)
    return found


def _is_chosen(value: Value) -> bool:
    """Whether a value depends on nothing but small integer inputs, which a caller can fix."""
    inputs = [v.tensor for v in walk([value]) if v.op is leaf.INPUT]
    small = [t.dtype.is_integer and t.is_static and isinstance(t.count, int) and t.count <= MOST_FIXED for t in inputs]
    return bool(inputs) and all(small)


def size_value(size: Size) -> Value:
    """A size as a number to compute with."""
    return ops.extent(size=size) if isinstance(size, Dim) else leaf.scalar(size, i64)


def numbers_in(value: Value) -> list[Value]:
    """The elements of a vector of whole numbers, or of a single one, each as i64."""
    flat = ops.cast(value, dtype=i64) if value.dtype is not i64 else value
    if flat.rank == 0:
        return [flat]
    count = flat.shape[0]
    return [build.select(flat, axis=0, index=i) for i in range(count if isinstance(count, int) else 0)]


def stretched(n: Node, x: Value, axis: int, count: Value, name: str) -> Value:
    """An axis of size 1 repeated so many times as the run says."""
    return ops.gather(x, n.counted(count, name) * 0, axis=axis)


def filled(n: Node, one: Value, sizes: Sequence[Value], name: str) -> Value:
    """One element in a shape that the run computes."""
    made = build.reshape(one, [1] * len(sizes))
    for axis, count in enumerate(sizes):
        made = stretched(n, made, axis, count, f"{name}_{axis}")
    return made

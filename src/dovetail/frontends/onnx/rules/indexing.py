"""Reading and writing by index, and values whose size depends on data."""

from __future__ import annotations

from typing import get_args

from dovetail import ops
from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.rule import collected, rule
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.indexing import Combine


@rule("Gather")
def gather(n: Node, x: Value, indices: Value, *, axis: int = 0) -> Value:
    """Slices along an axis, one for each index."""
    known = n.known(indices)
    if known is not None and known.size == 1 and isinstance(known.flat[0], int):
        chosen = build.select(x, axis=axis, index=known.flat[0])
        at = axis + x.rank if axis < 0 else axis
        return build.expand_dims(chosen, range(at, at + indices.rank))
    return ops.gather(x, indices, axis=axis)


@rule("GatherElements")
def gather_elements(n: Node, x: Value, indices: Value, *, axis: int = 0) -> Value:
    """For each index the element at its place, but along the axis at the index."""
    return ops.gather_elements(x, indices, axis=axis)


@rule("GatherND")
def gather_nd(n: Node, x: Value, indices: Value, *, batch_dims: int = 0) -> Value:
    """The part that each row of indices names."""
    return ops.gather_nd(x, indices, batch=batch_dims)


def _reduction(n: Node, reduction: str) -> str:
    if reduction not in get_args(Combine):
        raise n.unsupported(f"the reduction {reduction!r}", hint=f"it takes {', '.join(get_args(Combine))}")
    return reduction


@rule("Scatter", "ScatterElements")
def scatter_elements(
    n: Node, x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    """x with each update put at its place, but along the axis at its index."""
    return ops.scatter_elements(x, indices, updates, axis=axis, reduction=_reduction(n, reduction))


@rule("ScatterND")
def scatter_nd(n: Node, x: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    """x with each update put where its row of indices names."""
    return ops.scatter_nd(x, indices, updates, reduction=_reduction(n, reduction))


RULES = collected(globals())

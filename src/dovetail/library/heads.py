"""How a row of features becomes heads and back."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare.trace import part_of_traces
from dovetail.ir.value import Value


def split_heads(x: Value, heads: int) -> Value:
    """[*, s, heads * d] as [*, heads, s, d]."""
    return ops.permute(ops.split(x, axis=-1, parts=heads), order=(-2, -3, -1))


@part_of_traces
def repeated_heads(x: Value, groups: int | None) -> Value:
    """Each head once for every query head that shares it."""
    if groups is None:
        return x
    return ops.merge(ops.expand(ops.unsqueeze(x, axes=(-3,)), axis=-3, size=groups), axis=-3)


def merge_heads(x: Value) -> Value:
    """[*, heads, s, d] as [*, s, heads * d]."""
    return ops.merge(ops.permute(x, order=(-2, -3, -1)), axis=-1)

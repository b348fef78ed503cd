"""How a row of features becomes heads and back."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.value import Value


def split_heads(x: Value, heads: int) -> Value:
    """[*, s, heads * d] as [*, heads, s, d]."""
    return ops.permute(ops.split(x, axis=-1, parts=heads), order=(-2, -3, -1))


def merge_heads(x: Value) -> Value:
    """[*, heads, s, d] as [*, s, heads * d]."""
    return ops.merge(ops.permute(x, order=(-2, -3, -1)), axis=-1)

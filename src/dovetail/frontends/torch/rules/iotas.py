"""Indexing by positions that are all the positions of an axis: a view. Masks of transformers are written so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops import build

_SHAPES = (ops.unsqueeze, ops.squeeze, ops.expand)


def as_view(x: Value, indices: Sequence[Value | None]) -> Value | None:
    """x[indices] as a reshape, where each index counts through its axis of x along an axis of its own; else None."""
    if len(indices) != x.rank or any(i is None for i in indices):
        return None
    placed: list[int] = []
    rank = max(i.rank for i in indices if i is not None)
    shape: list[Size] = [1] * rank
    for axis, index in enumerate(indices):
        assert index is not None
        along = _counts(index, x.shape[axis])
        if along is None:
            return None
        if along == 0:
            continue
        placed.append(along)
        shape[along + rank] = x.shape[axis]
    if placed != sorted(set(placed)):
        return None
    return build.reshape(x, shape)


def _counts(index: Value, size: Size) -> int | None:
    """The axis, counted from the end, along which an index is 0, 1, 2, … below `size`; 0 for one 0; None otherwise."""
    wide = [a - index.rank for a, s in enumerate(index.shape) if s != 1]
    core = index
    while core.op in _SHAPES or (core.op is ops.add and _is_zero(core.operands[1])):
        core = core.operands[0]
    if size == 1 and not wide and (_is_zero(core) or core.op is ops.iota):
        return 0
    if core.op is not ops.iota or len(wide) != 1 or index.shape[wide[0]] != size or core.shape != (size,):
        return None
    return wide[0]


def _is_zero(value: Value) -> bool:
    if value.op is not leaf.CONST:
        return False
    array = value.attrs["value"].array
    return bool(array.size == 1 and not np.any(array))

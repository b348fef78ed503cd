"""Slices of a tensor that are written in place of others."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops.build import cut
from dovetail.passes.canonical.rule import listed, rule

_LARGEST_LOOKED_AT = 1 << 16
"""Places that are read to see whether they follow one another."""


@rule(ops.scatter_nd, on_constant=True)
def scatter_of_slice(value: Value) -> Value | None:
    """Updates for places that follow one another along the first axis stand between what is before and behind them."""
    x, indices, updates = value.operands
    if value.known_type is None or value.attrs["reduction"] != "none" or indices.op is not leaf.CONST:
        return None
    found: Array = indices.attrs["value"].array
    if found.ndim != 2 or found.shape[1] != 1 or not 0 < found.size <= _LARGEST_LOOKED_AT:
        return None
    places = found[:, 0]
    first, whole, axis = int(places[0]), x.shape[0], -x.rank
    behind = first + len(places)
    if not isinstance(whole, int) or first < 0 or behind > whole or (np.diff(places) != 1).any():
        return None
    rest = [cut(x, axis, 0, first)] if first else []
    return ops.concat(*rest, updates, *([cut(x, axis, behind, whole)] if behind < whole else []), axis=axis)


RULES = listed(globals())

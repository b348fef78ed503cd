"""Assignments to slices: a scatter at consecutive or alternating indices is a concat."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops.build import cut
from dovetail.passes.canonical.rule import listed, rule

_LARGEST_LOOKED_AT = 1 << 16
"""Most indices that are read to see whether they are consecutive."""


@rule(ops.scatter_nd, on_constant=True)
def scatter_of_slice(value: Value) -> Value | None:
    """A scatter at consecutive indices of the first axis is a concat: rows before, updates, rows after."""
    x, _, updates = value.operands
    places = _places(value)
    if places is None:
        return None
    first, whole, axis = int(places[0]), x.shape[0], -x.rank
    after = first + len(places)
    if not isinstance(whole, int) or first < 0 or after > whole or (np.diff(places) != 1).any():
        return None
    rest = [cut(x, axis, 0, first)] if first else []
    return ops.concat(*rest, updates, *([cut(x, axis, after, whole)] if after < whole else []), axis=axis)


@rule(ops.scatter_nd, on_constant=True)
def scatters_in_turns(value: Value) -> Value | None:
    """Two scatters, at even and at odd indices of the first axis, interleave their updates."""
    (x, _, second), odd = value.operands, _places(value)
    if odd is None or x.op is not ops.scatter_nd:
        return None
    (first, even), axis = (x.operands[2], _places(x)), -value.rank
    if even is None or value.shape[0] != 2 * len(odd) or 2 * len(even) != value.shape[0]:
        return None
    if (even != np.arange(0, 2 * len(even), 2)).any() or (odd != even + 1).any():
        return None
    pairs = [ops.unsqueeze(v, axes=(axis,)) for v in (first, second)]
    return ops.merge(ops.concat(*pairs, axis=axis), axis=axis)


def _places(value: Value) -> Array | None:
    """Where along the first axis updates are written in place of what was there, if that is known."""
    indices = value.operands[1]
    if value.known_type is None or value.attrs["reduction"] != "none" or indices.op is not leaf.CONST:
        return None
    found: Array = indices.attrs["value"].array
    known = found.ndim == 2 and found.shape[1] == 1 and 0 < found.size <= _LARGEST_LOOKED_AT
    return found[:, 0] if known else None


RULES = listed(globals())

"""Keys and values that come to the L2 cache before the kernels before an attention have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.gpu.attention.tile import CLUSTER_KEYS, AttendTile
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, less
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    Extent,
    Loop,
    Name,
    Prefetch,
    Set,
    Statement,
    Tensor,
    When,
    minimum,
    mul,
)


def prefetched(tile: AttendTile, place: Sequence[Statement]) -> tuple[Statement, ...]:
    """The keys and values of each warp, where rows are dense; `place` sets the leading indices of a block."""
    problem, dtype = tile.problem, tile.dtype
    if tile.sharing:
        # One warp prefetches for all, one run of keys after the other: a few long ones take it less time.
        splits = max(1, tile.splits * tile.warp_keys // CLUSTER_KEYS)
        tile = replace(tile, warp_keys=CLUSTER_KEYS, splits=splits)
    item, prefetches = dtype.itemsize, list[Statement]()
    for name in ("k", "v"):
        *lead, row, last = problem.strides[name]
        dense = (problem.d if name == "k" else problem.dv) * item
        if row != dense or last != item or dense % 16 or problem.rotated is not None:
            return ()
        count = minimum(Extent(tile.warp_keys), Call("sub", (Extent(problem.keys), Name("first_key")), i64))
        at = (*tile.lead[:-1], divided(tile.lead[-1], problem.groups), Name("first_key"), ZERO)
        prefetches.append(Prefetch(Tensor(name, dtype, (*lead, row, last)), at, mul(count, Extent(dense))))
    is_first = Call("equal", (LANE, ZERO), bool_)
    inside = Call("bit_and", (less(Name("first_key"), Extent(problem.keys)), is_first), bool_)
    each = (Set("first_key", tile.first_key(Name("round"))), When(inside, tuple(prefetches)))
    return (*place, Loop("round", Extent(tile.part_rounds), each))


__all__ = ["prefetched"]

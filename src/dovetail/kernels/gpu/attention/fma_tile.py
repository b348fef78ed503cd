"""Which queries, keys and columns a lane has in an attention without tensor cores.

A warp has 16 queries. Lanes whose numbers differ in bit 0 have every other one of them, and the other 16 times two
lanes share keys and columns: shared memory gives 16 bytes twice as fast where such neighbours read the same ones.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.dtype import f32
from dovetail.kernels.gpu.attention.tile import AttendTile
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, private, remainder
from dovetail.kernels.loops.ir import Expr, Extent, Tensor, ThreadIndex, add, mul

ROWS = 8
"""Queries of a lane."""
ACROSS = 16
"""Lanes of a warp that have different keys and columns."""
VECTOR = 4
"""Elements that are read at once."""
OTHERS = (2, 4, 8, 16)
"""How far lanes are apart that have the same queries."""


def pitch_of(tile: AttendTile) -> int:
    """Elements from a query, or a key, to the next one: neighbours start in different banks."""
    return tile.d + VECTOR


def weights_pitch_of(tile: AttendTile) -> int:
    """The same of weights: 16 keys of two neighbouring queries are in all banks."""
    return tile.keys + ACROSS


def fma_bytes(tile: AttendTile) -> int:
    """Shared memory of a block."""
    of_keys = tile.keys * (pitch_of(tile) + tile.dv)
    return (tile.rows * (pitch_of(tile) + weights_pitch_of(tile)) + of_keys) * f32.itemsize


def row_of(number: int) -> Expr:
    """A query of a lane in the tile of its block."""
    own = add(mul(ThreadIndex("warp"), Extent(2 * ROWS)), remainder(LANE, 2))
    return add(own, Extent(2 * number))


def key_of(number: Expr) -> Expr:
    """A key of a lane among those of a round."""
    return add(divided(LANE, 2), mul(number, Extent(ACROSS)))


def sums_of(tile: AttendTile) -> Tensor:
    """The sums of a lane: queries, then columns."""
    return private("sums", f32, ROWS, tile.dv // ACROSS)


def neighbours_of(tile: AttendTile) -> int:
    """Neighbouring columns of the values that a lane has; as many are 16 times as far on."""
    return next(n for n in (VECTOR, 2, 1) if tile.dv % (ACROSS * n) == 0)


def columns_of(tile: AttendTile) -> list[tuple[Expr, ...]]:
    """The columns of the values that a lane has, by the axes of `by_lane`."""
    width = neighbours_of(tile)
    groups = tile.dv // (ACROSS * width)
    return [(Extent(g), divided(LANE, 2), Extent(e)) for g in range(groups) for e in range(width)]


def by_lane(tensor: Tensor, tile: AttendTile) -> Tensor:
    """A tensor with columns as its last axis as one with axes of groups, lanes and neighbours in its place: with the
    sum of all LLVM sees no vectors."""
    (*front, last), width = tensor.strides, neighbours_of(tile)
    return replace(tensor, strides=(*front, ACROSS * width * last, width * last, last))


__all__ = [
    "ACROSS", "OTHERS", "ROWS", "VECTOR", "by_lane", "columns_of", "fma_bytes", "key_of", "neighbours_of", "pitch_of",
    "row_of", "sums_of", "weights_pitch_of",
]  # fmt: skip

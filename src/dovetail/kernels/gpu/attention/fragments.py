"""The products of an attention on GPUs: queries by keys, and weights by values, of fragments or by warpgroups."""

from __future__ import annotations

from dovetail.ir.dtype import f32
from dovetail.kernels.gpu.attention.tile import AttendTile, f32_name, times
from dovetail.kernels.gpu.gemm.fragments import load_right, multiplied, private, unrolled, zeroed
from dovetail.kernels.gpu.gemm.shared_tiles import SharedTile
from dovetail.kernels.loops.ir import (
    ZERO,
    AwaitProducts,
    Expr,
    Extent,
    Load,
    MultiplyShared,
    Name,
    NarrowMatrices,
    Statement,
    Store,
    add,
    mul,
)


def multiplied_keys(block: AttendTile, keys: SharedTile, name: str, stage: Expr) -> list[Statement]:
    """Start the products of queries and keys by a warpgroup, into the scores of this name."""
    scores = private(name, f32, block.warp_keys // 8, 4)
    queries = private("q_fragment", block.dtype, block.d // 16, 8)
    found: list[Statement] = [zeroed(scores, block.warp_keys // 8 * 4)]
    source, at = keys.place(stage, block.own_keys, ZERO)
    given = queries, (ZERO, ZERO), source, at, block.warp_keys
    return [*found, MultiplyShared(scores, *given, True, True, keys.panel_bytes, block.d)]


def scored(block: AttendTile, keys: SharedTile) -> list[Statement]:
    """The products of queries and keys."""
    scores, right = private("scores", f32, block.warp_keys // 8, 4), private("right", block.dtype, 1)
    queries = private("q_fragment", block.dtype, block.d // 16, 8)
    empty = zeroed(scores, block.warp_keys // 8 * 4)
    if block.by_group:
        return [*multiplied_keys(block, keys, "scores", Name("stage")), AwaitProducts(scores, block.warp_keys)]
    j, step, k = Name("j"), Name("step"), mul(Name("step"), Extent(16))
    column, at = add(block.own_keys, mul(j, Extent(16))), (mul(j, Extent(8)),)
    return [
        empty,
        unrolled(
            "step",
            block.d // 16,
            unrolled("j", block.warp_keys // 16, load_right(right, at, keys, "k", Name("stage"), column, k)),
            unrolled("j", block.warp_keys // 8, multiplied(scores, (j, ZERO), queries, (step, ZERO), right, j)),
        ),
    ]


def summed(block: AttendTile, values: SharedTile, axis: str) -> list[Statement]:
    """The products of weights and values, added to sums that shrink first."""
    sums, right = private("sums", f32, block.dv // 8, 4), private("right", block.dtype, 1)
    weights = private("weights", block.dtype, block.warp_keys // 16, 8)
    j, e, step = Name("j"), Name("e"), Name("step")
    found: list[Statement] = []
    for half in block.lane_rows:
        at = (j, add(e, Extent(2 * half.number)))
        shrunk = times(Load(sums, at), f32_name(half.shrunk))
        found.append(unrolled("j", block.dv // 8, unrolled("e", 2, Store(sums, at, shrunk))))
    if block.by_group:
        source, at = values.place(Name("stage"), block.own_keys, ZERO)
        given, panel = (weights, (ZERO, ZERO), source, at, block.dv), values.panel_bytes
        product = MultiplyShared(sums, *given, True, False, panel, block.warp_keys)
        return [*found, product, AwaitProducts(sums, block.dv)]
    column, k, at = mul(j, Extent(16)), add(block.own_keys, mul(step, Extent(16))), (mul(j, Extent(8)),)
    products = unrolled(
        "step",
        block.warp_keys // 16,
        unrolled("j", block.dv // 16, load_right(right, at, values, axis, Name("stage"), column, k)),
        unrolled("j", block.dv // 8, multiplied(sums, (j, ZERO), weights, (step, ZERO), right, j)),
    )
    return [*found, products]


def narrowed(block: AttendTile) -> Statement:
    """Weights, which are where their scores were, as the left factor of the second product."""
    count = block.warp_keys // 16
    weights, scores = private("weights", block.dtype, count, 8), private("scores", f32, count, 8)
    at = (Name("step"), ZERO)
    return unrolled("step", count, NarrowMatrices(weights, at, scores, at))


__all__ = ["multiplied_keys", "narrowed", "scored", "summed"]

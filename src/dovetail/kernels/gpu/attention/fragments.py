"""The products of an attention on GPUs: queries by keys, and weights by values, of fragments or by warpgroups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.ir.dtype import f32
from dovetail.kernels.gpu.attention.masks import HeldMasks, ranges_seen, shown
from dovetail.kernels.gpu.attention.softmax import At, LaneRow, ScoreLayout, f32_name, times
from dovetail.kernels.gpu.attention.tile import AttendTile, GroupTile
from dovetail.kernels.gpu.gemm.fragments import (
    LANE,
    SharedTile,
    load_right,
    multiplied,
    private,
    remainder,
    unrolled,
    zeroed,
)
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    AllReduce,
    AwaitProducts,
    Expr,
    Extent,
    Load,
    MultiplyShared,
    Name,
    NarrowMatrices,
    Set,
    Statement,
    Store,
    add,
    minimum,
    mul,
)


def multiplied_keys(block: AttendTile, keys: SharedTile, name: str, stage: Expr) -> list[Statement]:
    """Start the products of queries and keys by a warpgroup, into the scores of this name."""
    scores = private(name, f32, block.warp_keys // 8, 4)
    queries = private("q_fragment", block.dtype, block.d // 16, 8)
    statements: list[Statement] = [zeroed(scores, block.warp_keys // 8 * 4)]
    source, at = keys.place(stage, block.own_keys, ZERO)
    operands = queries, (ZERO, ZERO), source, at, block.warp_keys
    return [*statements, MultiplyShared(scores, *operands, True, True, keys.panel_bytes, block.d)]


def scored(block: AttendTile, keys: SharedTile) -> list[Statement]:
    """The products of queries and keys."""
    scores, right = private("scores", f32, block.warp_keys // 8, 4), private("right", block.dtype, 1)
    queries = private("q_fragment", block.dtype, block.d // 16, 8)
    empty = zeroed(scores, block.warp_keys // 8 * 4)
    if isinstance(block, GroupTile):
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
    statements: list[Statement] = []
    for half in block.lane_rows:
        at = (j, add(e, Extent(2 * half.number)))
        shrunk = times(Load(sums, at), f32_name(half.shrunk))
        statements.append(unrolled("j", block.dv // 8, unrolled("e", 2, Store(sums, at, shrunk))))
    if isinstance(block, GroupTile):
        source, at = values.place(Name("stage"), block.own_keys, ZERO)
        operands, panel = (weights, (ZERO, ZERO), source, at, block.dv), values.panel_bytes
        product = MultiplyShared(sums, *operands, True, False, panel, block.warp_keys)
        return [*statements, product, AwaitProducts(sums, block.dv)]
    column, k, at = mul(j, Extent(16)), add(block.own_keys, mul(step, Extent(16))), (mul(j, Extent(8)),)
    products = unrolled(
        "step",
        block.warp_keys // 16,
        unrolled("j", block.dv // 16, load_right(right, at, values, axis, Name("stage"), column, k)),
        unrolled("j", block.dv // 8, multiplied(sums, (j, ZERO), weights, (step, ZERO), right, j)),
    )
    return [*statements, products]


def narrowed(block: AttendTile) -> Statement:
    """Weights, which are where their scores were, as the left factor of the second product."""
    count = block.warp_keys // 16
    weights, scores = private("weights", block.dtype, count, 8), private("scores", f32, count, 8)
    at = (Name("step"), ZERO)
    return unrolled("step", count, NarrowMatrices(weights, at, scores, at))


class FragmentScores(ScoreLayout, HeldMasks):
    """Scores in fragments of matrix instructions: four neighbouring lanes have a query, two of each eight keys each."""

    def __init__(self, block: AttendTile) -> None:
        self.block, self.numerics = block, block.numerics
        self._scores = private("scores", f32, block.warp_keys // 8, 4)

    @property
    def counts(self) -> tuple[int, ...]:
        return self.block.warp_keys // 8, 2

    def each(self, body: Callable[[At], Sequence[Statement]]) -> list[Statement]:
        inner = unrolled("e", 2, *body((Name("j"), Name("e"))))
        return [unrolled("j", self.block.warp_keys // 8, inner)]

    def _index(self, row: LaneRow, at: At) -> At:
        j, e = at
        return j, add(e, Extent(2 * row.number))

    def score(self, row: LaneRow, at: At) -> Expr:
        return Load(self._scores, self._index(row, at))

    def shown(self, row: LaneRow, at: At) -> list[Statement]:
        j, e = at
        key = Set("key", add(Name("first_key"), add(mul(j, Extent(8)), e)))
        held = self if self.block.holds_masks else None
        return [key, Store(self._scores, self._index(row, at), shown(self.block, self.score(row, at), row, at, held))]

    def kept(self, row: LaneRow, at: At, weight: Name) -> list[Statement]:
        """Weights are the left factor of the second product: narrow, at once or in a warpgroup together."""
        if isinstance(self.block, GroupTile):
            return [Store(self._scores, self._index(row, at), weight)]
        weights = private("weights", self.block.dtype, self.block.warp_keys // 8, 4)
        return [Store(weights, self._index(row, at), cast_to(weight, self.block.dtype))]

    def combined(self, rows: Sequence[LaneRow], name: str, op: str) -> list[Statement]:
        return [AllReduce(name, op, f32, 4)]

    def of_round(self) -> list[Statement]:
        """The weights of a round."""
        tile = self.block
        statements: list[Statement] = [Set("first_key", self._first(Name("round")))]
        statements += ranges_seen(tile) if tile.sees_ranges else []
        for row in tile.lane_rows:
            statements += self.weighted([row])
        return [*statements, narrowed(tile)] if isinstance(tile, GroupTile) else statements

    def _first(self, number: Expr) -> Expr:
        """The first key of a lane in a round."""
        return add(self.block.first_key(number), mul(remainder(LANE, 4), Extent(2)))

    def place(self, row: LaneRow, number: Expr, at: At) -> tuple[list[Statement], At]:
        a, (j, e) = self.block.problem, at
        own = Set("key", add(self._first(number), add(mul(j, Extent(8)), e)))
        return [own], (minimum(Name(row.query), Extent(a.queries - 1)), minimum(Name("key"), Extent(a.keys - 1)))

    def rows_of(self, name: str) -> Sequence[LaneRow]:
        return self.block.lane_rows


__all__ = ["FragmentScores", "multiplied_keys", "scored", "summed"]

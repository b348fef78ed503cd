"""The online softmax of an attention on GPUs: scores in registers become weights, and the sums so far shrink."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bool_, f32, u8
from dovetail.kernels.gpu.attention.fragments import narrowed
from dovetail.kernels.gpu.attention.masks import LOG2_E, Shifts, is_seen, ranges_seen
from dovetail.kernels.gpu.attention.tile import MINUS_INFINITY, AttendTile, LaneRow, f32_name, minus, times
from dovetail.kernels.gpu.gemm.fragments import LANE, both, less, plus, private, remainder, unrolled
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    Alloc,
    AllReduce,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    add,
    minimum,
    mul,
)

NEXT = "_next"
"""After the name of what a lane holds: that of the next round."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a row that a lane has in a round."""

    at: tuple[Expr, ...]
    """Where one is."""
    key: Expr
    """Its key."""
    each: Callable[..., Loop]
    """Statements for each of them."""
    combined: Callable[[str, str], Sequence[Statement]]
    """Combine what lanes with scores of one row keep under a name, by an op."""
    kept: Statement
    """Keep the weight of one."""


def weighted(tile: AttendTile) -> list[Statement]:
    """Scores with masks and fills; their exponentials, and what the sums so far shrink by."""
    weights = private("weights", tile.dtype, tile.warp_keys // 8, 4)
    j, e = Name("j"), Name("e")
    first = tile.first_key(Name("round"))
    found: list[Statement] = [Set("first_key", add(first, mul(remainder(LANE, 4), Extent(2))))]
    found += ranges_seen(tile) if tile.sees_ranges else []
    scores = private("scores", f32, tile.warp_keys // 8, 4)

    def each(*body: Statement) -> Loop:
        return unrolled("j", tile.warp_keys // 8, unrolled("e", 2, *body))

    def combined(name: str, op: str) -> list[Statement]:
        return [AllReduce(name, op, f32, 4)]

    for half in tile.lane_rows:
        at = (j, add(e, Extent(2 * half.number)))
        key = add(Name("first_key"), add(mul(j, Extent(8)), e))
        weight = f32_name("weight")
        kept = Store(scores, at, weight) if tile.by_group else Store(weights, at, cast_to(weight, tile.dtype))
        found += row_weighted(tile, half, scores, Scores(at, key, each, combined, kept))
    return [*found, narrowed(tile)] if tile.by_group else found


def row_weighted(tile: AttendTile, half: LaneRow, scores: Tensor, of: Scores) -> list[Statement]:
    """The scores of a row of a lane, which become weights."""
    score = Load(scores, of.at)
    more = Call("maximum", (f32_name("round_most"), score), f32)
    start, scaled, below = f32_name(half.most), list[Statement](), list[Statement]()
    weight = tile.exp(minus(score, f32_name("safe")))
    if tile.is_folded:
        factor = _in_powers(tile)
        largest = Call("maximum", (f32_name(half.most), times(f32_name("round_most"), factor)), f32)
        start, scaled = MINUS_INFINITY, [Set("round_most", largest)]
        below = [Set("below", minus(Number(0.0, f32), f32_name("safe")))]
        weight = tile.exp(Call("fma", (score, factor, f32_name("below")), f32))
    none = Call("equal", (f32_name("round_most"), MINUS_INFINITY), bool_)
    return [
        Set("round_most", start),
        of.each(Set("key", of.key), Store(scores, of.at, _shown(tile, score, half)), Set("round_most", more)),
        *of.combined("round_most", "maximum"),
        *scaled,
        # Without a key that is seen the scores are -inf, and their weights 0.
        Set("safe", Call("where", (none, Number(0.0, f32), f32_name("round_most")), f32)),
        *below,
        Set(half.shrunk, tile.exp(minus(f32_name(half.most), f32_name("safe")))),
        Set(half.most, f32_name("round_most")),
        Set("round_total", Number(0.0, f32)),
        of.each(Set("weight", weight), of.kept, Set("round_total", plus(f32_name("round_total"), f32_name("weight")))),
        *of.combined("round_total", "add"),
        Set(half.total, plus(times(f32_name(half.total), f32_name(half.shrunk)), f32_name("round_total"))),
    ]


def _given(tile: AttendTile) -> list[tuple[str, DType]]:
    """The masks of an attention."""
    return [(n, dtype) for n, dtype in (("mask", tile.dtype), ("keep", bool_)) if n in tile.problem.strides]


def _held(tile: AttendTile, name: str, half: LaneRow, when: str = "") -> Tensor:
    """What a lane holds of a mask, for the keys of a round. Conditions are held as the bytes that they are in memory:
    a lane that made predicates of them would wait for them where it loads them."""
    dtype = _as_loaded(dict(_given(tile))[name])
    return private(f"{name}{half.number}{when}", dtype, tile.warp_keys // 8, 2)


def _as_loaded(dtype: DType) -> DType:
    return u8 if dtype is bool_ else dtype


def masks_allocated(tile: AttendTile) -> list[Alloc]:
    """Registers for masks of a round and of the next one."""
    count = tile.warp_keys // 8 * 2
    return [
        Alloc(_held(tile, name, half, when).pointer, _as_loaded(dtype), count, "private")
        for name, dtype in _given(tile)
        for half in tile.lane_rows
        for when in ("", NEXT)
    ]


def masks_loaded(tile: AttendTile, number: Expr, when: str = "") -> list[Statement]:
    """Masks of the keys of a round, before its scores: they take as long to load as keys do."""
    a, j, e = tile.problem, Name("j"), Name("e")
    first = add(tile.first_key(number), mul(remainder(LANE, 4), Extent(2)))
    found: list[Statement] = []
    for name, dtype in _given(tile):
        for half in tile.lane_rows:
            at = minimum(Name(half.query), Extent(a.queries - 1)), minimum(Name("key"), Extent(a.keys - 1))
            load = Load(Tensor(name, _as_loaded(dtype), a.strides[name]), (*tile.lead, *at))
            one = Set("key", add(first, add(mul(j, Extent(8)), e))), Store(_held(tile, name, half, when), (j, e), load)
            found.append(unrolled("j", tile.warp_keys // 8, unrolled("e", 2, *one)))
    return found


def masks_moved(tile: AttendTile) -> list[Statement]:
    """The next round's masks become those of the round."""
    j, e = Name("j"), Name("e")
    found: list[Statement] = []
    for name, _ in _given(tile):
        for half in tile.lane_rows:
            move = Store(_held(tile, name, half), (j, e), Load(_held(tile, name, half, NEXT), (j, e)))
            found.append(unrolled("j", tile.warp_keys // 8, unrolled("e", 2, move)))
    return found


def _in_powers(tile: AttendTile) -> Number:
    """What a product of a query and a key is multiplied by to be a power of 2."""
    return Number(tile.problem.scale * LOG2_E.value, f32)


def _shown(tile: AttendTile, score: Expr, half: LaneRow) -> Expr:
    """A score as the softmax sees it."""
    a = tile.problem
    key, query = Name("key"), Name(half.query)
    there = less(key, Extent(a.keys))
    inside = minimum(query, Extent(a.queries - 1)), minimum(key, Extent(a.keys - 1))
    if tile.in_powers and not tile.is_folded:
        score = times(score, _in_powers(tile))
    elif a.scale != 1.0 and not tile.is_folded:
        score = times(score, Number(a.scale, f32))
    if a.softcap is not None:
        bent = Call("tanh", (Call("div", (score, Number(a.softcap, f32)), f32),), f32)
        score = times(bent, Number(a.softcap, f32))
    given: dict[str, Expr] = {}
    for name, dtype in _given(tile):
        given[name] = Load(Tensor(name, dtype, a.strides[name]), (*tile.lead, *inside))
        if tile.holds_masks:
            held = Load(_held(tile, name, half), (Name("j"), Name("e")))
            given[name] = Call("not_equal", (held, Number(0, u8)), bool_) if dtype is bool_ else held
    if tile.leaves_out:
        given["keep"] = is_seen(tile, half)
    seen: list[Expr] = [given["keep"]] if "keep" in given else []
    if tile.sees_ranges:
        seen.append(is_seen(tile, half))
    elif a.causal:
        seen.append(less(key, add(query, Extent(1))))
        if a.window is not None:
            seen.append(less(query, add(key, Extent(a.window))))
    shifts = Shifts(tile)
    own = add(mul(remainder(LANE, 4), Extent(2)), add(mul(Name("j"), Extent(8)), Name("e")))
    mask = shifts.at(own) if shifts.are_ahead else shifts.of(given["mask"]) if "mask" in given else None
    if mask is not None and a.filled != "first":
        score = plus(score, mask)
    if seen:
        fill = Number(-math.inf if a.fill is None else a.fill, f32)
        visible = both(*seen)
        if a.filled == "added":
            score = plus(score, Call("where", (visible, Number(0.0, f32), fill), f32))
        else:
            score = Call("where", (visible, score, fill), f32)
    if mask is not None and a.filled == "first":
        score = plus(score, mask)
    is_full = tile.by_group and isinstance(a.keys, int) and a.keys % tile.keys == 0
    if tile.leaves_out or tile.sees_ranges or is_full:
        return score  # keys beyond the last one are hidden, or there are none
    return Call("where", (there, score, MINUS_INFINITY), f32)


__all__ = ["NEXT", "Scores", "masks_allocated", "masks_loaded", "masks_moved", "row_weighted", "weighted"]

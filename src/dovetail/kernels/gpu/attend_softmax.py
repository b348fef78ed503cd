"""The online softmax of an attention on GPUs: scores in registers become weights, and the sums so far shrink."""

from __future__ import annotations

import math

from dovetail.ir.dtype import bool_, f32
from dovetail.kernels.gpu.attend_tile import (
    HALVES,
    MINUS_INFINITY,
    AttendTile,
    Half,
    f32_name,
    minus,
    near_exp,
    times,
)
from dovetail.kernels.gpu.fragments import LANE, both, less, plus, private, remainder, unrolled
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    AllReduce,
    Call,
    Expr,
    Extent,
    Load,
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


def weighted(tile: AttendTile) -> list[Statement]:
    """Scores with masks and fills; their exponentials, and what the sums so far shrink by."""
    scores, weights = (
        private("scores", f32, tile.warp_keys // 8, 4),
        private("weights", tile.dtype, tile.warp_keys // 8, 4),
    )
    j, e = Name("j"), Name("e")
    first = tile.first_key(Name("round"))
    found: list[Statement] = [Set("first_key", add(first, mul(remainder(LANE, 4), Extent(2))))]
    for half in HALVES:
        at = (j, add(e, Extent(2 * half.number)))
        key = add(Name("first_key"), add(mul(j, Extent(8)), e))
        shown = _shown(tile, Load(scores, at), half)
        more = Call("maximum", (f32_name("round_most"), Load(scores, at)), f32)
        found += [
            Set("round_most", f32_name(half.most)),
            unrolled(
                "j",
                tile.warp_keys // 8,
                unrolled("e", 2, Set("key", key), Store(scores, at, shown), Set("round_most", more)),
            ),
            AllReduce("round_most", "maximum", f32, 4),
            # Without a key that is seen the scores are -inf, and their weights 0.
            Set(
                "safe",
                Call(
                    "where",
                    (
                        Call("equal", (f32_name("round_most"), MINUS_INFINITY), bool_),
                        Number(0.0, f32),
                        f32_name("round_most"),
                    ),
                    f32,
                ),
            ),
            Set(half.shrunk, near_exp(minus(f32_name(half.most), f32_name("safe")))),
            Set(half.most, f32_name("round_most")),
            Set("round_total", Number(0.0, f32)),
            unrolled(
                "j",
                tile.warp_keys // 8,
                unrolled(
                    "e",
                    2,
                    Set("weight", near_exp(minus(Load(scores, at), f32_name("safe")))),
                    Store(weights, at, cast_to(f32_name("weight"), tile.dtype)),
                    Set("round_total", plus(f32_name("round_total"), f32_name("weight"))),
                ),
            ),
            AllReduce("round_total", "add", f32, 4),
            Set(half.total, plus(times(f32_name(half.total), f32_name(half.shrunk)), f32_name("round_total"))),
        ]
    return found


def _shown(tile: AttendTile, score: Expr, half: Half) -> Expr:
    """A score as the softmax sees it."""
    a = tile.problem
    key, query = Name("key"), Name(half.query)
    there = less(key, Extent(a.keys))
    inside = minimum(query, Extent(a.queries - 1)), minimum(key, Extent(a.keys - 1))
    if a.scale != 1.0:
        score = times(score, Number(a.scale, f32))
    if a.softcap is not None:
        bent = Call("tanh", (Call("div", (score, Number(a.softcap, f32)), f32),), f32)
        score = times(bent, Number(a.softcap, f32))
    given: dict[str, Expr] = {}
    for name, dtype in (("mask", tile.dtype), ("keep", bool_)):
        if name in a.strides:
            given[name] = Load(Tensor(name, dtype, a.strides[name]), (*tile.lead, *inside))
    seen: list[Expr] = [given["keep"]] if "keep" in given else []
    if a.causal:
        seen.append(less(key, add(query, Extent(1))))
        if a.window is not None:
            seen.append(less(query, add(key, Extent(a.window))))
    mask = cast_to(given["mask"], f32) if "mask" in given else None
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
    return Call("where", (there, score, MINUS_INFINITY), f32)


__all__ = ["weighted"]

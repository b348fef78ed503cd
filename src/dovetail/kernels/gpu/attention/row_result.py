"""The results of an attention of one query in f32: what lanes, warps and blocks found, each combined in one order."""

from __future__ import annotations

from dovetail.ir.dtype import f32
from dovetail.kernels.gpu.attention.row_tile import (
    LEAST,
    PADDED,
    SHARING,
    WARP,
    WARPS,
    RowTile,
    equal,
    exp_of,
    f32_name,
)
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, remainder
from dovetail.kernels.loops.ir import (
    ZERO,
    AllReduce,
    Barrier,
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
    When,
    add,
    mul,
)


def combined(tile: RowTile) -> list[Statement]:
    """What all warps found, in shared memory; a thread has a column of a row."""
    of, kept = tile.problem, tile.kept
    found: list[Statement] = []
    last: list[Statement] = []
    own = add(mul(WARP, Extent(tile.keys)), divided(LANE, SHARING))
    for r in range(tile.rows):
        top, total = f"top{r}", f"total{r}"
        found += [Set(top, f32_name(f"most{r}")), AllReduce(top, "maximum", f32)]
        base = Call("where", (equal(f32_name(top), LEAST), Number(0, f32), f32_name(top)), f32)
        found.append(Set(f"less{r}", exp_of(f32_name(f"most{r}"), base)))
        # Lanes that share a key have the same total.
        part = Call("mul", (f32_name(total), Number(1 / SHARING, f32)), f32)
        found += [Set(total, Call("mul", (part, f32_name(f"less{r}")), f32)), AllReduce(total, "add", f32)]
        for i, f in enumerate(tile.features(of.dv)):
            value = Call("mul", (f32_name(f"sum{r}_{i}"), f32_name(f"less{r}")), f32)
            found.append(Store(tile.found, (own, Extent(r), f), value))
        last += [Store(kept, (WARP, Extent(r), Extent(i)), f32_name(n)) for i, n in enumerate((top, total))]
    found += [When(equal(LANE, ZERO), tuple(last)), Barrier()]
    row, column = Name("row"), Name("column")
    each: list[Statement] = [Set(row.name, divided(Name("own"), of.dv))]
    each.append(Set(column.name, remainder(Name("own"), of.dv)))
    each += _warps_merged(tile, row, column)
    if tile.parts == 1:
        each.append(_stored(tile, row, column))
    else:
        each += _left_over(tile)
    return [*found, Loop("own", Extent(tile.rows * of.dv), tuple(each), kind="thread"), Barrier()]


def _warps_merged(tile: RowTile, row: Expr, column: Expr) -> list[Statement]:
    """The largest score, the total and a weighted sum of all warps. Without any key that is seen all scores are
    minus infinity: the total is 0, and the result no number."""
    kept, found = tile.kept, list[Statement]()
    top: Expr = LEAST
    for w in range(WARPS):
        top = Call("maximum", (top, Load(kept, (Extent(w), row, ZERO))), f32)
    found += [Set("top", top), _based(), Set("above", Number(0, f32)), Set("below", Number(0, f32))]
    for w in range(WARPS):
        found.append(Set("weight", exp_of(Load(kept, (Extent(w), row, ZERO)), f32_name("base"))))
        value: Expr = Load(tile.found, (Extent(w * tile.keys), row, column))
        for group in range(1, tile.keys):
            value = Call("add", (value, Load(tile.found, (Extent(w * tile.keys + group), row, column))), f32)
        for name, more in (("above", value), ("below", Load(kept, (Extent(w), row, Extent(1))))):
            found.append(Set(name, Call("fma", (f32_name("weight"), more, f32_name(name)), f32)))
    return found


def _left_over(tile: RowTile) -> list[Statement]:
    """What this block found of a column, for the block that combines it."""
    at = (*tile.lead, divided(Name("own"), tile.share), Name("part"))
    within = remainder(Name("own"), tile.share)
    names = ("top", *["below"] * (PADDED - 1))
    # Blocks that receive a share wait for its padding too.
    last = [Store(tile.partial, (*at, Extent(tile.share + i)), f32_name(name)) for i, name in enumerate(names)]
    return [Store(tile.partial, (*at, within), f32_name("above")), When(equal(within, ZERO), tuple(last))]


def shares_combined(tile: RowTile) -> list[Statement]:
    """A share of the columns from what all blocks found: some lanes share a column, with a few parts each."""
    dv, share = tile.problem.dv, tile.share
    lanes = max([n for n in (1, 2, 4, 8, 16, 32) if tile.parts % n == 0 and share * n <= tile.lanes * WARPS])
    lanes = lanes if share * lanes % tile.lanes == 0 else 1
    column = add(mul(Name("part"), Extent(share)), Name("within"))
    each: list[Statement] = [
        Set("within", divided(Name("own"), lanes)),
        Set("row", divided(column, dv)),
        Set("column", remainder(column, dv)),
        Set("top", LEAST),
    ]
    parts = [add(Extent(i * lanes), remainder(Name("own"), lanes)) for i in range(tile.parts // lanes)]

    def of(part: Expr, at: Expr) -> Expr:
        return Load(tile.partial, (*tile.lead, Name("part"), part, at))

    def reduced(op: str, *names: str) -> list[Statement]:
        return [AllReduce(name, op, f32, lanes) for name in names if lanes > 1]

    for part in parts:
        each.append(Set("top", Call("maximum", (f32_name("top"), of(part, Extent(share))), f32)))
    each += [*reduced("maximum", "top"), _based(), Set("above", Number(0, f32)), Set("below", Number(0, f32))]
    for part in parts:
        each.append(Set("weight", exp_of(of(part, Extent(share)), f32_name("base"))))
        for name, at in (("above", Name("within")), ("below", Extent(share + 1))):
            each.append(Set(name, Call("fma", (f32_name("weight"), of(part, at), f32_name(name)), f32)))
    stored = _stored(tile, Name("row"), Name("column"))
    each += reduced("add", "above", "below")
    each.append(stored if lanes == 1 else When(equal(remainder(Name("own"), lanes), ZERO), (stored,)))
    return [Loop("own", Extent(share * lanes), tuple(each), kind="thread")]


def _stored(tile: RowTile, row: Expr, column: Expr) -> Store:
    y = Tensor("y", f32, tile.problem.strides["y"])
    ratio = Call("div", (f32_name("above"), f32_name("below")), f32)
    return Store(y, (*tile.lead, row, column), ratio)


def _based() -> Set:
    """What is subtracted from scores; where nothing is seen, the difference of minus infinities is no number."""
    return Set("base", Call("where", (equal(f32_name("top"), LEAST), Number(0, f32), f32_name("top")), f32))


__all__ = ["combined", "shares_combined"]

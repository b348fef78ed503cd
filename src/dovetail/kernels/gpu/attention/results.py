"""Results of an attention that go through shared memory of each warp, so that a thread writes 16 bytes of a row.

A lane has pairs of columns: written where they are, four lanes fill half of a sector of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from dovetail.ir.dtype import bool_, f32, i64
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.softmax import LaneRow, f32_name, largest, merged, minus, or_zero, times
from dovetail.kernels.gpu.attention.sources import AttendSources
from dovetail.kernels.gpu.attention.tile import FRAGMENT_ROWS, GROUP, GROUP_WARPS, AttendTile, ClusterTile, GroupTile
from dovetail.kernels.gpu.gemm.fragments import LANE, THREAD, both, divided, less, plus, private, remainder, unrolled
from dovetail.kernels.gpu.gemm.tile import CHUNK, WARP_ROWS
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
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
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    minimum,
    mul,
)
from dovetail.ops.view import quotient

_STAGED = "staged"


def are_staged(sources: AttendSources, tile: AttendTile) -> bool:
    """Whether a block of one warpgroup writes rows whose results are adjacent and aligned."""
    *apart, last = sources.problem.strides["y"]
    nbytes = CHUNK * sources.dtype.itemsize
    steps = (*apart, sources.aligned)
    return tile.overlaps and last == sources.dtype.itemsize and all(quotient(s, nbytes) is not None for s in steps)


def staged_allocated(tile: AttendTile) -> Alloc:
    return Alloc(_STAGED, tile.dtype, tile.rows * (tile.dv + CHUNK), "shared")


def staged_written(tile: AttendTile, results: Callable[[LaneRow], list[tuple[Expr, Expr]]]) -> list[Statement]:
    """The results of a warp, which `results` tells for a row of each lane: columns and what they have."""
    item, warp = tile.dtype.itemsize, ThreadIndex("warp")
    pitch = (tile.dv + CHUNK) * item
    room = Tensor(_STAGED, tile.dtype, (WARP_ROWS * pitch, pitch, item), space="shared")
    statements: list[Statement] = []
    for half in FRAGMENT_ROWS:
        row = add(divided(LANE, 4), Extent(8 * half.number))
        statements += [Store(room, (warp, row, column), value) for column, value in results(half)]
    a, groups = tile.problem, tile.dv // CHUNK
    target = Tensor("y", tile.dtype, a.strides["y"])
    statements += [
        WarpBarrier(),
        Set("first_query", Call("sub", (Name(FRAGMENT_ROWS[0].query), divided(LANE, 4)), i64)),
    ]
    for turn in range(WARP_ROWS * groups // LANES):
        own = add(LANE, Extent(turn * LANES))
        line, first = divided(own, groups), mul(remainder(own, groups), Extent(CHUNK))
        query = Name(f"staged_query{turn}")
        stores: list[Statement] = []
        for e in range(CHUNK):
            column = add(first, Extent(e))
            stores.append(Store(target, (*tile.lead, query, column), Load(room, (warp, line, column))))
        statements.append(Set(query.name, add(Name("first_query"), line)))
        statements.append(When(less(query, Extent(a.queries)), tuple(stores)))
    return [*statements, WarpBarrier()]


def written(tile: AttendTile, *, staged: bool = False) -> list[Statement]:
    """The weighted sums over their totals; `staged` where they go through shared memory of each warp."""
    if tile.parts > 1:
        return partial_stored(tile)
    if isinstance(tile, GroupTile) and tile.is_apart:
        return _exchanged(tile)
    if tile.splits > 1:
        return _combined(tile)
    inverses = [Set(f"inverse{half.number}", inverse_of(tile, f32_name(half.total))) for half in FRAGMENT_ROWS]
    if staged:
        return [*inverses, *staged_written(tile, lambda half: _own_results(tile, half))]
    statements: list[Statement] = [*inverses]
    for half in FRAGMENT_ROWS:
        every = _own_results(tile, half)
        for j, pair in enumerate(zip(every[::2], every[1::2], strict=True)):
            fits = 8 * j + 8 <= tile.problem.dv
            stores = [_stored(tile, Name(half.query), column, value, fits) for column, value in pair]
            statements.append(When(less(Name(half.query), Extent(tile.problem.queries)), tuple(stores)))
    return statements


def _own_results(tile: AttendTile, half: LaneRow) -> list[tuple[Expr, Expr]]:
    """The results of a row of a lane: columns, and weighted sums over the total."""
    sums = private("sums", f32, tile.dv // 8, 4)
    results: list[tuple[Expr, Expr]] = []
    for j, e in product(range(tile.dv // 8), range(2)):
        column = add(mul(remainder(LANE, 4), Extent(2)), Extent(8 * j + e))
        total = times(Load(sums, (Extent(j), Extent(2 * half.number + e))), f32_name(f"inverse{half.number}"))
        results.append((column, cast_to(total, tile.dtype)))
    return results


def _stored(tile: AttendTile, query: Expr, column: Expr, value: Expr, fits: bool) -> Statement:
    a = tile.problem
    target = Tensor("y", tile.dtype, a.strides["y"])
    store = Store(target, (*tile.lead, query, column), cast_to(value, tile.dtype))
    return store if fits else When(less(column, Extent(a.dv)), (store,))


def inverse_of(tile: AttendTile, total: Expr) -> Expr:
    """Return the factor of weighted sums: one over the total."""
    a = tile.problem
    inverse: Expr = Call("near_div", (Number(1.0, f32), total), f32)
    if a.empty == "zero":
        some = Call("greater", (total, Number(0.0, f32)), bool_)
        inverse = Call("where", (some, inverse, Number(0.0, f32)), f32)
    elif a.zero_unseen:
        none = Call("equal", (total, Number(0.0, f32)), bool_)
        inverse = Call("where", (none, Number(0.0, f32), inverse), f32)
    if not isinstance(a.keys, int) or a.keys == 0:
        inverse = Call("where", (less(ZERO, Extent(a.keys)), inverse, Number(0.0, f32)), f32)
    return inverse


def partial_stored(tile: AttendTile, own_stored: Sequence[Statement] = ()) -> list[Statement]:
    """Store this block's partial result of each query in the workspace; `own_stored` stores the share of a warp that is
    not in fragments."""
    if tile.splits == 1:
        return _own_stored(tile, tile.partial, lambda query: (*tile.lead, query, Name("part")))
    assert isinstance(tile, ClusterTile), "warps share the keys of a block"
    shares, own = tile.query_shares, Name("own")
    at = (*tile.lead, divided(own, tile.share), Name("part"))
    within = remainder(own, tile.share)

    def of_split(last: Expr) -> Callable[[Expr], Expr]:
        return lambda split: Load(shares, (split, Name("query"), last))

    last = [Store(tile.partial, (*at, Extent(tile.share)), f32_name("most"))]
    # Blocks that receive a share wait for its padding too.
    for place in range(tile.share + 1, tile.share_width):
        last.append(Store(tile.partial, (*at, Extent(place)), f32_name("total")))
    body = (
        Set("query", divided(own, tile.dv)),
        Set("column", remainder(own, tile.dv)),
        *merged(
            tile.numerics,
            tile.splits,
            of_split(Extent(tile.dv)),
            {"total": of_split(Extent(tile.dv + 1)), "value": of_split(Name("column"))},
        ),
        Store(tile.partial, (*at, within), f32_name("value")),
        When(Call("equal", (within, ZERO), bool_), tuple(last)),
    )
    stores = [*own_stored]
    stores = stores or _own_stored(tile, shares, lambda query: (divided(ThreadIndex("warp"), tile.warps), query))
    stores = [When(tile.has_keys, tuple(stores))] if tile.spare else stores
    return [*stores, Barrier(), Loop("own", Extent(tile.queries * tile.dv), body, kind="thread")]


def _own_stored(tile: AttendTile, target: Tensor, of: Callable[[Expr], tuple[Expr, ...]]) -> list[Statement]:
    """Store the accumulators of a warp for each query: weighted sums, the largest score and the total."""
    sums = private("sums", f32, tile.dv // 8, 4)
    statements: list[Statement] = []
    for half in tile.lane_rows:
        at = of(Name(half.query))
        stores: list[Statement] = []
        for j in range(tile.dv // 8):
            for e in range(2):
                column = add(mul(remainder(LANE, 4), Extent(2)), Extent(8 * j + e))
                stores.append(Store(target, (*at, column), Load(sums, (Extent(j), Extent(2 * half.number + e)))))
        own = [Store(target, (*at, Extent(tile.dv)), f32_name(half.most))]
        own.append(Store(target, (*at, Extent(tile.dv + 1)), f32_name(half.total)))
        stores.append(When(Call("equal", (remainder(LANE, 4), ZERO), bool_), tuple(own)))
        statements.append(When(less(Name(half.query), Extent(tile.problem.queries)), tuple(stores)))
    return statements


def parts_combined(tile: AttendTile) -> list[Statement]:
    """A query from what all blocks along the keys have of it: a thread for each column."""
    each = _column_combined(tile, Name("query"), Name("column"))
    return [Loop("column", Extent(tile.problem.dv), tuple(each), kind="thread")]


def cluster_combined(tile: ClusterTile) -> list[Statement]:
    """The queries of a cluster from what each of its blocks has of them: a block has a share of their columns."""
    shares = tile.queries * (tile.dv // tile.share)
    combined = _share_combined(tile)
    if shares <= tile.parts:
        # Blocks without a share of their own read the last one: what is received of a share was written.
        first = Set("share_number", minimum(Name("part"), Extent(shares - 1)))
        return [first, When(less(Name("part"), Extent(shares)), (combined,))]
    number = add(Name("part"), mul(Name("turn"), Extent(tile.parts)))
    inside = When(less(Name("share_number"), Extent(shares)), (combined,))
    return [Loop("turn", Extent(-(-shares // tile.parts)), (Set("share_number", number), inside))]


def _share_combined(tile: AttendTile) -> Loop:
    """The columns of a share, each by some neighbouring lanes that have a few parts each, or by one thread."""
    lanes, dv = _lanes(tile), tile.problem.dv
    own = add(mul(Name("share_number"), Extent(tile.share)), Name("within"))
    place = [Set("query", divided(own, tile.dv)), Set("column", remainder(own, tile.dv))]
    inside = () if dv == tile.dv else (less(Name("column"), Extent(dv)),)
    if lanes == 1:
        column = tuple(_column_combined(tile, Name("share_number"), Name("within")))
        column = (When(inside[0], column),) if inside else column
        return Loop("within", Extent(tile.share), (*place, *column), kind="thread")
    at = [Set("within", divided(Name("own"), lanes)), Set("of_lane", remainder(Name("own"), lanes))]
    *sets, last = _column_combined(tile, Name("share_number"), Name("within"), lanes)
    stored = When(both(Call("equal", (Name("of_lane"), ZERO), bool_), *inside), (last,))
    return Loop("own", Extent(tile.share * lanes), (*at, *place, *sets, stored), kind="thread")


def _lanes(tile: AttendTile) -> int:
    """Lanes that combine the parts of a column: as many as a block has for each, in whole warps."""
    counts = [n for n in (32, 16, 8, 4, 2) if tile.parts % n == 0 and tile.share * n % LANES == 0]
    return max([n for n in counts if tile.share * n <= tile.threads], default=1)


def _column_combined(tile: AttendTile, share: Expr, within: Expr, lanes: int = 1) -> list[Statement]:
    """A column of a query from all parts, of which `lanes` have some each; the last statement stores it."""

    def of(last: Expr) -> Callable[[Expr], Expr]:
        return lambda part: Load(tile.partial, (*tile.lead, share, part, last))

    sums = {"total": of(Extent(tile.share + 1)), "value": of(within)}
    return [
        *merged(tile.numerics, tile.parts, of(Extent(tile.share)), sums, lanes),
        Set("inverse", inverse_of(tile, f32_name("total"))),
        _stored(tile, Name("query"), Name("column"), times(f32_name("value"), f32_name("inverse")), fits=True),
    ]


def _exchanged(tile: GroupTile) -> list[Statement]:
    """The same of two warpgroups: each has half of the columns in the end, and sends the sums of the other half.

    A thread has the rows and columns of the thread of the other group with its number.
    """
    count = tile.dv // 16 * 4
    sums, target = private("sums", f32, 2, count), tile.exchanged
    thread, e, other = remainder(THREAD, GROUP_WARPS * LANES), Name("e"), Call("sub", (Extent(1), GROUP), i64)
    kept = [f32_name(name) for half in FRAGMENT_ROWS for name in (half.most, half.total)]

    def place_of(group: Expr, number: Expr) -> tuple[Expr, ...]:
        return group, divided(number, 4), thread, remainder(number, 4)

    statements: list[Statement] = []
    for group in range(2):
        tell = Store(target, place_of(Extent(group), e), Load(sums, (Extent(1 - group), e)))
        statements.append(When(Call("equal", (GROUP, Extent(group)), bool_), (unrolled("e", count, tell),)))
    statements += [Store(target, place_of(GROUP, Extent(count + i)), value) for i, value in enumerate(kept)]
    statements.append(Barrier())
    for half in FRAGMENT_ROWS:
        most, total = (Load(target, place_of(other, Extent(count + 2 * half.number + i))) for i in range(2))
        statements += [Set("other_most", most), Set("other_total", total), *_weighed(tile, half)]
    for group in range(2):
        stores = [s for half in FRAGMENT_ROWS for s in _half_stored(tile, half, group, place_of)]
        statements.append(When(Call("equal", (GROUP, Extent(group)), bool_), tuple(stores)))
    return [*statements, Barrier()]


def _weighed(tile: AttendTile, half: LaneRow) -> list[Statement]:
    """Set the factors of both groups' sums of a query."""
    own, other, most = f32_name(half.most), f32_name("other_most"), f32_name("most")
    shares = [f32_name(f"{name}{half.number}") for name in ("own_share", "other_share")]
    total = plus(times(shares[0], f32_name(half.total)), times(shares[1], f32_name("other_total")))
    return [
        Set("most", largest(own, other)),
        Set("most", or_zero(most)),
        *[Set(s.name, tile.numerics.exp(minus(x, most))) for s, x in zip(shares, (own, other), strict=True)],
        Set("inverse", inverse_of(tile, total)),
        *[Set(s.name, times(s, f32_name("inverse"))) for s in shares],
    ]


def _half_stored(
    tile: GroupTile, half: LaneRow, group: int, place_of: Callable[[Expr, Expr], tuple[Expr, ...]]
) -> list[Statement]:
    """The results of a query in a group's half of the columns."""
    count = tile.dv // 16 * 4
    sums, query = private("sums", f32, 2, count), Name(half.query)
    own, other = (f32_name(f"{name}{half.number}") for name in ("own_share", "other_share"))
    stores: list[Statement] = []
    for j in range(tile.dv // 16):
        for e in range(2):
            number = Extent(4 * j + 2 * half.number + e)
            more = times(Load(tile.exchanged, place_of(Extent(1 - group), number)), other)
            value = plus(times(Load(sums, (Extent(group), number)), own), more)
            column = add(mul(remainder(LANE, 4), Extent(2)), Extent(8 * (group * tile.dv // 16 + j) + e))
            stores.append(_stored(tile, query, column, value, fits=True))
    return [When(less(query, Extent(tile.problem.queries)), tuple(stores))]


def _combined(tile: AttendTile) -> list[Statement]:
    """Sums of several warps along the keys, each relative to its own largest score."""
    sums, shares = private("sums", f32, tile.dv // 8, 4), tile.shares
    warp = ThreadIndex("warp")
    part, first = divided(warp, tile.warps), mul(remainder(warp, tile.warps), Extent(16))
    statements: list[Statement] = []
    for half in FRAGMENT_ROWS:
        row = add(first, add(divided(LANE, 4), Extent(8 * half.number)))
        for j in range(tile.dv // 8):
            for e in range(2):
                column = add(mul(remainder(LANE, 4), Extent(2)), Extent(8 * j + e))
                statements.append(
                    Store(shares, (part, row, column), Load(sums, (Extent(j), Extent(2 * half.number + e))))
                )
        own = [Store(shares, (part, row, Extent(tile.dv)), f32_name(half.most))]
        own.append(Store(shares, (part, row, Extent(tile.dv + 1)), f32_name(half.total)))
        statements.append(When(Call("equal", (remainder(LANE, 4), ZERO), bool_), tuple(own)))
    groups = tile.dv // CHUNK
    row, group = divided(Name("own"), groups), remainder(Name("own"), groups)
    body: list[Statement] = [
        Set("row", row),
        Set("query", add(Name("top"), Name("row"))),
    ]

    def of(last: int) -> Callable[[Expr], Expr]:
        return lambda split: Load(shares, (split, Name("row"), Extent(last)))

    body += merged(tile.numerics, tile.splits, of(tile.dv), {"total": of(tile.dv + 1)}, keeps_shares=True)
    body.append(Set("inverse", inverse_of(tile, f32_name("total"))))
    e = Name("e")
    column = add(mul(group, Extent(CHUNK)), e)
    value: Expr = Number(0.0, f32)
    for s in range(tile.splits):
        value = plus(value, times(f32_name(f"share{s}"), Load(shares, (Extent(s), Name("row"), column))))
    value = times(value, f32_name("inverse"))
    fits = tile.problem.dv % CHUNK == 0 and tile.problem.dv == tile.dv
    stores = unrolled("e", CHUNK, _stored(tile, Name("query"), column, value, fits))
    body.append(When(less(Name("query"), Extent(tile.problem.queries)), (stores,)))
    return [*statements, Barrier(), Loop("own", Extent(tile.rows * groups), tuple(body), kind="thread"), Barrier()]


__all__ = [
    "are_staged",
    "cluster_combined",
    "inverse_of",
    "partial_stored",
    "parts_combined",
    "staged_allocated",
    "written",
]

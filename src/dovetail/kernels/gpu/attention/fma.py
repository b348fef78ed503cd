"""Attention of f32 with an online softmax: multiply-adds, since tensor cores would round its factors.

Queries, keys and values are in shared memory, rows as they are. A lane has eight queries and every sixteenth of 64
keys, so that it reads 12 times 16 bytes for 128 multiply-adds. Weights go through shared memory of their warp, whose
lanes then have columns of the values in the place of keys. Values are copied while scores are computed, and the next
keys while values are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_, f32
from dovetail.kernels.gpu.attention.masks import shown
from dovetail.kernels.gpu.attention.results import inverse_of
from dovetail.kernels.gpu.attention.softmax import At, LaneRow, ScoreLayout, f32_name, started, times, with_lane
from dovetail.kernels.gpu.attention.sources import COPY_BYTES, AttendSources
from dovetail.kernels.gpu.attention.tile import FmaAttendTile
from dovetail.kernels.gpu.attention.writer import AttendWriter
from dovetail.kernels.gpu.gemm.block_tile import spread_bytes
from dovetail.kernels.gpu.gemm.fragments import (
    LANE,
    divided,
    less,
    private,
    remainder,
    rolled,
    shared_by,
    unrolled,
    zeroed,
)
from dovetail.kernels.gpu.pipeline import CopyGroups, Pipeline, StagedOperand
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Call,
    CopyAsync,
    Expr,
    Extent,
    Launch,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    mul,
)

ROWS = 8
"""Queries of a lane."""
ACROSS = 16
"""Lanes of a warp that have different keys and columns."""
VECTOR = 4
"""Elements that are read at once."""
OTHERS = (2, 4, 8, 16)
"""How far lanes are apart that have the same queries."""


def pitch_of(tile: FmaAttendTile) -> int:
    """Elements from a query, or a key, to the next one: neighbours start in different banks."""
    return tile.d + VECTOR


def weights_pitch_of(tile: FmaAttendTile) -> int:
    """The same of weights: 16 keys of two neighbouring queries are in all banks."""
    return tile.keys + ACROSS


def fma_bytes(tile: FmaAttendTile) -> int:
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


def sums_of(tile: FmaAttendTile) -> Tensor:
    """The sums of a lane: queries, then columns."""
    return private("sums", f32, ROWS, tile.dv // ACROSS)


def neighbours_of(tile: FmaAttendTile) -> int:
    """Neighbouring columns of the values that a lane has; as many are 16 times as far on."""
    return next(n for n in (VECTOR, 2, 1) if tile.dv % (ACROSS * n) == 0)


def columns_of(tile: FmaAttendTile) -> list[tuple[Expr, ...]]:
    """The columns of the values that a lane has, by the axes of `by_lane`."""
    width = neighbours_of(tile)
    groups = tile.dv // (ACROSS * width)
    return [(Extent(g), divided(LANE, 2), Extent(e)) for g in range(groups) for e in range(width)]


def by_lane(tensor: Tensor, tile: FmaAttendTile) -> Tensor:
    """A tensor with columns as its last axis as one with axes of groups, lanes and neighbours in its place: with the
    sum of all LLVM sees no vectors."""
    (*front, last), width = tensor.strides, neighbours_of(tile)
    return replace(tensor, strides=(*front, ACROSS * width * last, width * last, last))


def fma_written(tile: FmaAttendTile) -> list[Statement]:
    """Store the accumulators of a block: as results, or as a partial sum."""
    statements: list[Statement] = []
    for row in tile.lane_rows:
        stores = _result(tile, row.number) if tile.parts == 1 else _partial_stored(tile, row.number)
        statements.append(When(less(Name(row.query), Extent(tile.problem.queries)), tuple(stores)))
    return statements


def _result(tile: FmaAttendTile, number: int) -> list[Statement]:
    """The results of a query."""
    a, row = tile.problem, tile.lane_rows[number]
    target = by_lane(Tensor("y", f32, a.strides["y"]), tile)
    statements: list[Statement] = [Set("inverse", inverse_of(tile, f32_name(row.total)))]
    for n, column in enumerate(columns_of(tile)):
        value = times(Load(sums_of(tile), (Extent(number), Extent(n))), f32_name("inverse"))
        store = Store(target, (*tile.lead, Name(row.query), *column), value)
        statements.append(store if _fits(tile, n) else When(less(_index(tile, column), Extent(a.dv)), (store,)))
    return statements


def _fits(tile: FmaAttendTile, number: int) -> bool:
    """Whether the result has a column in all lanes."""
    group = ACROSS * neighbours_of(tile)
    return (number // neighbours_of(tile) + 1) * group <= tile.problem.dv


def _index(tile: FmaAttendTile, column: tuple[Expr, ...]) -> Expr:
    """The number of a column."""
    (group, lane, neighbour), width = column, neighbours_of(tile)
    return add(add(mul(group, Extent(ACROSS * width)), mul(lane, Extent(width))), neighbour)


def _partial_stored(tile: FmaAttendTile, number: int) -> list[Statement]:
    """Store a query's partial result in the workspace: accumulators, the largest score and the total."""
    row, target = tile.lane_rows[number], by_lane(tile.partial, tile)
    at = (*tile.lead, Name(row.query), Name("part"))
    stores: list[Statement] = [
        Store(target, (*at, *column), Load(sums_of(tile), (Extent(number), Extent(n))))
        for n, column in enumerate(columns_of(tile))
    ]
    kept = (row.most, row.total)
    own = [Store(tile.partial, (*at, Extent(tile.dv + n)), f32_name(name)) for n, name in enumerate(kept)]
    first = Call("less", (LANE, Extent(2)), bool_)
    return [*stores, When(first, tuple(own))]


CHUNKS_AT_ONCE = 2
"""Vectors of features, or of keys, of one turn of a loop: all of them would be more code than the cache for it has."""


class FmaScores(ScoreLayout):
    """Scores in registers without tensor cores: a lane has eight queries and every sixteenth key."""

    def __init__(self, block: FmaAttendTile, weights: Tensor) -> None:
        self.block, self.numerics = block, block.numerics
        self._weights, self._count = weights, block.keys // ACROSS
        self._scores = private("scores", f32, ROWS, self._count)

    def each(self, body: Callable[[At], Sequence[Statement]]) -> list[Statement]:
        return [unrolled("number", self._count, *body((Name("number"),)))]

    def score(self, row: LaneRow, at: At) -> Expr:
        return Load(self._scores, (Extent(row.number), *at))

    def shown(self, row: LaneRow, at: At) -> list[Statement]:
        key = Set("key", add(Name("first_key"), key_of(*at)))
        score = shown(self.block, self.score(row, at), row, at)
        return [key, Store(self._scores, (Extent(row.number), *at), score)]

    def kept(self, row: LaneRow, at: At, weight: Name) -> list[Statement]:
        return [Store(self._weights, (row_of(row.number), key_of(*at)), weight)]

    def combined(self, rows: Sequence[LaneRow], name: str, op: str) -> list[Statement]:
        return [s for apart in OTHERS for s in with_lane(name, op, apart)]


class FmaAttend(AttendWriter):
    """The kernels of such an attention."""

    block: FmaAttendTile

    def __init__(self, sources: AttendSources, tile: FmaAttendTile, resident: int) -> None:
        super().__init__(sources, tile)
        self._resident = resident
        """Blocks of a multiprocessor at once."""

    def _allocations(self) -> list[Alloc]:
        lines = {"q_tile": self.rows, "k_tile": self.keys, "v_tile": self.keys, "weights": self.rows}
        tiles = [(name, count * self._pitch(name)) for name, count in lines.items()]
        held = [("sums", ROWS * self.dv // ACROSS), ("scores", ROWS * self._keys_each)]
        held += [("left", VECTOR * ROWS), ("right", VECTOR * max(self._keys_each, self.dv // ACROSS))]
        return [
            *(Alloc(name, f32, count, "shared") for name, count in tiles),
            *(Alloc(name, f32, count, "private") for name, count in held),
        ]

    @property
    def _keys_each(self) -> int:
        """Keys of a lane in a round."""
        return self.keys // ACROSS

    def _launch(self, grid: Size, shared: int) -> Launch:
        room = spread_bytes(shared, grid, self.device, self.request)
        return Launch(grid, self.threads, room, self._resident)

    def _room(self, name: str) -> Tensor:
        """A tile in shared memory: rows, and elements of each."""
        return Tensor(name, f32, (self._pitch(name) * f32.itemsize, f32.itemsize), space="shared")

    def _pitch(self, name: str) -> int:
        """Elements from a row of a tile to the next one."""
        return {"v_tile": self.dv, "weights": weights_pitch_of(self.block)}.get(name, pitch_of(self.block))

    def _loaded(self, name: str, number: Expr, stage: Expr) -> list[Statement]:
        """Start the copies of the queries of a block, or of the keys or values of a round."""
        room, factor = self._room(f"{name}_tile"), self.factors[name]
        lines, length = (self.rows if name == "q" else self.keys), (self.dv if name == "v" else self.d)
        first = Name("top") if name == "q" else mul(self.block.key_round(number), Extent(self.keys))
        of = {"q": self.rows, "k": self.keys, "v": self.dv}[name]
        wide = COPY_BYTES // f32.itemsize if self.copies else 1

        def one(own: Expr) -> list[Statement]:
            line, at = divided(own, length // wide), mul(remainder(own, length // wide), Extent(wide))
            row, k = (at, add(first, line)) if name == "v" else (add(first, line), at)
            source, inside = factor.source(row, k, of)
            return [CopyAsync(room, (line, at), factor.tensor, source, inside, wide * f32.itemsize)]

        return [rolled(s) for s in shared_by(self.threads, lines * length // wide, one)]

    def _queries(self) -> list[Statement]:
        statements: list[Statement] = [zeroed(sums_of(self.block), ROWS * self.dv // ACROSS)]
        for row in self.block.lane_rows:
            statements += [Set(row.query, add(Name("top"), row_of(row.number)))]
            statements += started([row])
        return [*statements, *self._loaded("q", ZERO, ZERO), *self.steps.start()]

    @property
    def steps(self) -> Pipeline:
        """Values are copied while scores are computed, and the next keys while values are added up."""
        operands = (
            StagedOperand(partial(self._loaded, "k"), lambda number, stage: [*self._scored(), *self._weights()]),
            StagedOperand(partial(self._loaded, "v"), lambda number, stage: self._summed()),
        )
        return Pipeline(1, self._rounds(), operands, CopyGroups(ahead=1), is_rolled=True)

    def _written(self) -> list[Statement]:
        return fma_written(self.block)

    def _scored(self) -> list[Statement]:
        """The products of queries and keys."""
        scores = private("scores", f32, ROWS, self._keys_each)
        keys = [key_of(Extent(n)) for n in range(self._keys_each)]

        def vector(first: Expr) -> list[Statement]:
            statements = self._read("left", self._room("q_tile"), [row_of(n) for n in range(ROWS)], first)
            statements += self._read("right", self._room("k_tile"), keys, first)
            return statements + [s for e in range(VECTOR) for s in _added(scores, e)]

        return [zeroed(scores, ROWS * self._keys_each), _in_turns(self.d // VECTOR, vector)]

    def _read(self, name: str, room: Tensor, lines: list[Expr], first: Expr) -> list[Statement]:
        """Neighbouring elements of some lines, into registers: lines, then elements."""
        held = private(name, f32, len(lines), VECTOR)
        return [
            Store(held, (Extent(n), Extent(e)), Load(room, (line, add(first, Extent(e)))))
            for n, line in enumerate(lines)
            for e in range(VECTOR)
        ]

    def _weights(self) -> list[Statement]:
        """The weights of scores, in shared memory of the warp."""
        scores = FmaScores(self.block, self._room("weights"))
        first = Set("first_key", self.block.first_key(Name("round")))
        return [first, *[s for row in self.block.lane_rows for s in scores.weighted([row])]]

    def _summed(self) -> list[Statement]:
        """The products of weights and values, added to sums that shrink first."""
        sums, columns = sums_of(self.block), columns_of(self.block)
        statements: list[Statement] = []
        for row in self.block.lane_rows:
            at = Extent(row.number), Name("column")
            shrunk = Store(sums, at, times(Load(sums, at), f32_name(row.shrunk)))
            statements.append(unrolled("column", len(columns), shrunk))
        held, values = private("right", f32, len(columns), VECTOR), by_lane(self._room("v_tile"), self.block)

        def vector(first: Expr) -> list[Statement]:
            read = self._read("left", self._room("weights"), [row_of(n) for n in range(ROWS)], first)
            for e in range(VECTOR):
                for n, column in enumerate(columns):
                    load = Load(values, (add(first, Extent(e)), *column))
                    read.append(Store(held, (Extent(n), Extent(e)), load))
            return read + [s for e in range(VECTOR) for s in _added(sums, e)]

        return [*statements, _in_turns(self.keys // VECTOR, vector)]


def _added(sums: Tensor, element: int) -> list[Statement]:
    """The products of an element of each line on both sides, back and forth as in a product of matrices."""
    (apart, item), rows = sums.strides, ROWS
    assert isinstance(apart, int) and isinstance(item, int), "private"
    left, right = private("left", f32, rows, VECTOR), private("right", f32, apart // item, VECTOR)
    statements: list[Statement] = []
    for n in range(apart // item):
        for row in range(rows)[:: -1 if n % 2 else 1]:
            at = Extent(row), Extent(n)
            factors = (Load(side, (i, Extent(element))) for side, i in zip((left, right), at, strict=True))
            statements.append(Store(sums, at, Call("fma", (*factors, Load(sums, at)), f32)))
    return statements


def _in_turns(count: int, vector: Callable[[Expr], Sequence[Statement]]) -> Loop:
    """Vectors of a line, some of them in a turn."""
    at_once = CHUNKS_AT_ONCE if count % CHUNKS_AT_ONCE == 0 else 1
    first = mul(Name("vectors"), Extent(VECTOR * at_once))
    body = [s for n in range(at_once) for s in vector(add(first, Extent(VECTOR * n)))]
    return Loop("vectors", Extent(count // at_once), tuple(body), rolled=True)


__all__ = ["FmaAttend", "fma_bytes"]

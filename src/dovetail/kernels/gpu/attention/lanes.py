"""Products and softmax of an attention of few queries by multiply-adds: no tensor core, and no barrier between lanes.

A warp has 8 keys in a round. Neighbouring lanes share the features of a key, so that a few shuffles sum a score; the
largest of a round is found by shuffles too. Each lane then has a few columns of the values, and takes the weight of
every key from the lane that has it. Any product by tensor cores lowers the clock of an H200 by a tenth, so that a
persistent kernel without one is faster in all of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dovetail.ir.dtype import bool_, f32, u16, u32, u64
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.masks import HeldMasks, masked
from dovetail.kernels.gpu.attention.softmax import (
    At,
    LaneRow,
    Numerics,
    ScoreLayout,
    f32_name,
    started,
    times,
    with_lane,
)
from dovetail.kernels.gpu.attention.tile import LaneTile
from dovetail.kernels.gpu.gemm.fragments import LANE, Factor, SharedTile, divided, less, remainder
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    AllReduce,
    Call,
    Expr,
    Extent,
    FromLane,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    minimum,
    mul,
)

_WORDS = CHUNK // 2
"""Words of 32 bits of a chunk, each of which has two elements."""
_OF_VALUES = (u16, u32, u64, u64)
"""Words of 1, 2 and 4 columns."""


class LaneKeys(ScoreLayout, HeldMasks):
    """What a warp does with the keys and values of a round: scores are summed by neighbouring lanes."""

    merges_late = True
    sums_late = True

    def __init__(self, block: LaneTile, tiles: Mapping[str, SharedTile], factors: Mapping[str, Factor]) -> None:
        self.block, self.tiles, self.factors = block, tiles, factors
        self.sharing = block.sharing
        self.numerics = Numerics.near(block.problem, is_fast=True, can_fold=False)

    @property
    def rows(self) -> range:
        assert isinstance(self.block.problem.queries, int), "few queries are known"
        return range(self.block.problem.queries)

    @property
    def _at_once(self) -> int:
        """Keys whose features lanes have at a time."""
        return LANES // self.sharing

    @property
    def passes(self) -> range:
        """Keys of a lane."""
        return range(self.block.warp_keys // self._at_once)

    @property
    def _columns(self) -> int:
        """Columns of the values of a lane."""
        return self.block.problem.dv // LANES

    def started(self) -> list[Statement]:
        """No sums yet."""
        statements: list[Statement] = []
        for r in self.rows:
            statements += started([LaneRow(r)])
            statements += [Set(f"sum{r}_{e}", Number(0.0, f32)) for e in range(self._columns)]
        return statements

    def _key(self, first: Expr, number: int) -> Expr:
        return add(first, add(divided(LANE, self.sharing), Extent(number * self._at_once)))

    @property
    def _queries(self) -> list[LaneRow]:
        return [LaneRow(r) for r in self.rows]

    @property
    def counts(self) -> tuple[int, ...]:
        return (len(self.passes),)

    def each(self, body: Callable[[At], Sequence[Statement]]) -> list[Statement]:
        return [s for p in self.passes for s in body((Extent(p),))]

    def place(self, row: LaneRow, number: Expr, at: At) -> tuple[list[Statement], At]:
        key = self._key(self.block.first_key(number), _number(at))
        return [], (Extent(row.number), minimum(key, Extent(self.block.problem.keys - 1)))

    def rows_of(self, name: str) -> Sequence[LaneRow]:
        """Masks of heads that share keys are often the same."""
        return self._queries[:1] if self.block.problem.strides[name][-2] == 0 else self._queries

    def score(self, row: LaneRow, at: At) -> Name:
        return f32_name(f"score{_number(at)}_{row.number}")

    def weight(self, row: LaneRow, at: At) -> Name:
        return f32_name(f"weight{_number(at)}_{row.number}")

    def own(self, name: str, row: LaneRow) -> Name:
        return f32_name(f"{name}{row.number}")

    def shown(self, row: LaneRow, at: At) -> list[Statement]:
        held = self.of(row, at)
        mask = self.numerics.of_mask(held["mask"]) if "mask" in held else None
        seen: list[Expr] = [Name(f"inside{_number(at)}", bool_), *([held["keep"]] if "keep" in held else [])]
        score = self.score(row, at)
        return [Set(score.name, masked(self.block.problem, self.numerics, score, mask, seen))]

    def combined(self, rows: Sequence[LaneRow], name: str, op: str) -> list[Statement]:
        return [s for apart in self._strides() for row in rows for s in with_lane(self.own(name, row).name, op, apart)]

    def of_round(self) -> list[Statement]:
        """The weights of a round."""
        keys, first = Extent(self.block.problem.keys), self.block.first_key(Name("round"))
        return [
            *[Set(f"inside{p}", less(self._key(first, p), keys)) for p in self.passes],
            *self.weighted(self._queries),
        ]

    def scored(self) -> list[Statement]:
        """The products of queries and keys, in all lanes that share a key."""
        statements: list[Statement] = [Set(f"score{p}_{r}", Number(0.0, f32)) for p in self.passes for r in self.rows]
        count = self.block.problem.d // (CHUNK * self.sharing)
        statements.append(Loop("chunk", Extent(count), tuple(self._chunk_scored(Name("chunk"))), rolled=True))
        statements += [AllReduce(f"score{p}_{r}", "add", f32, self.sharing) for p in self.passes for r in self.rows]
        return statements

    def _chunk_scored(self, number: Expr) -> list[Statement]:
        """A chunk of each lane. It is a loop: all blocks wait for code, which is read once in each pass."""
        statements, keys = list[Statement](), list[list[Expr]]()
        chunk = add(mul(number, Extent(self.sharing)), remainder(LANE, self.sharing))
        for p in self.passes:
            line = add(divided(LANE, self.sharing), Extent(p * self._at_once))
            statements += self._words(f"keys_of{p}", *self.tiles["k"].place(Name("stage"), line, chunk))
            keys.append(self._widened(statements, f"keys_of{p}", _WORDS))
        for r in self.rows:
            statements += self._query_words(f"query_of{r}", r, chunk)
            for e, q in enumerate(self._widened(statements, f"query_of{r}", _WORDS)):
                for p in self.passes:
                    score = f32_name(f"score{p}_{r}")
                    statements.append(Set(score.name, Call("fma", (q, keys[p][e], score), f32)))
        return statements

    def _words(self, name: str, tensor: Tensor, at: tuple[Expr, ...]) -> list[Statement]:
        """Words of a tile in shared memory."""
        *strides, _ = tensor.strides
        words = replace(tensor, dtype=u32, strides=(*strides, u32.itemsize))
        *front, first = at
        return [Set(f"{name}_{w}", Load(words, (*front, add(first, Extent(w))))) for w in range(_WORDS)]

    def _query_words(self, name: str, row: int, chunk: Expr) -> list[Statement]:
        """A chunk of a query, straight from where it is."""
        tensor = self.factors["q"].tensor
        *lead, _ = tensor.strides
        source = Tensor("q", u32, (*lead, u32.itemsize), tensor.offset)
        first = mul(chunk, Extent(_WORDS))
        at = (*self.block.lead, Extent(row))
        return [Set(f"{name}_{w}", Load(source, (*at, add(first, Extent(w))))) for w in range(_WORDS)]

    def _widened(self, statements: list[Statement], name: str, count: int) -> list[Expr]:
        """Elements of words, in f32."""
        every: list[Expr] = []
        for w in range(count):
            word = Name(f"{name}_{w}", u32)
            for half in range(2):
                bits = Call("shift_right", (word, Number(16, u32)), u32) if half else word
                statements.append(Set(f"{name}_{w}{'ab'[half]}", self._wide(cast_to(bits, u16))))
                every.append(f32_name(f"{name}_{w}{'ab'[half]}"))
        return every

    def _wide(self, bits: Expr) -> Expr:
        return cast_to(Call("bitcast", (bits,), self.block.dtype), f32)

    def _strides(self) -> list[int]:
        """How far lanes are apart that have other keys."""
        return [n for n in (1, 2, 4, 8, 16) if n >= self.sharing]

    def summed(self) -> list[Statement]:
        """The products of weights and values, added to sums that shrink first."""
        statements: list[Statement] = []
        for r in self.rows:
            for e in range(self._columns):
                name = f32_name(f"sum{r}_{e}")
                statements.append(Set(name.name, times(name, f32_name(f"shrunk{r}"))))
        return [*statements, Loop("own", Extent(self._at_once), tuple(self._own_summed(Name("own"))), rolled=True)]

    def _own_summed(self, number: Expr) -> list[Statement]:
        """The keys of some lanes that share one, by the columns of each lane."""
        statements: list[Statement] = [Set("from", mul(number, Extent(self.sharing)))]
        for p in self.passes:
            values = self._values(statements, p, add(number, Extent(p * self._at_once)))
            for r in self.rows:
                statements.append(FromLane(f"given{r}", f"weight{p}_{r}", Name("from"), f32))
                for e, value in enumerate(values):
                    name = f32_name(f"sum{r}_{e}")
                    statements.append(Set(name.name, Call("fma", (f32_name(f"given{r}"), value, name), f32)))
        return statements

    def _values(self, statements: list[Statement], p: int, line: Expr) -> list[Expr]:
        """The columns of a lane of a value, by words that are as wide as these: LLVM sees no alignment in a loop."""
        many = min(self._columns, len(_OF_VALUES))
        kind, first = _OF_VALUES[many - 1], mul(LANE, Extent(self._columns))
        tensor, at = self.tiles["v"].place(Name("stage"), line, divided(first, CHUNK), remainder(first, CHUNK))
        every: list[Expr] = []
        for w in range(self._columns // many):
            word = Name(f"values_of{p}_{w}", kind)
            words = replace(tensor, dtype=kind, strides=(*tensor.strides[:-1], kind.itemsize))
            place = add(divided(at[-1], many), Extent(w))
            statements.append(Set(word.name, Load(words, (*at[:-1], place))))
            for i in range(max(1, many // 2)):
                pair = Call("shift_right", (word, Number(32 * i, kind)), kind) if i else word
                statements.append(Set(f"{word.name}_{i}", cast_to(pair, u32)))
            every += self._widened(statements, word.name, max(1, many // 2))[:many]
        return every

    def stored(self, target: Tensor) -> list[Statement]:
        """Store the accumulators of a warp for each query: weighted sums, the largest score and the total."""
        statements, own, dv = list[Statement](), self._columns, self.block.dv
        statements += self.combined(self._queries, "total", "add")
        last: list[Statement] = []
        for r in self.rows:
            at = (ThreadIndex("warp"), Extent(r))
            for e in range(own):
                column = add(mul(LANE, Extent(own)), Extent(e))
                statements.append(Store(target, (*at, column), f32_name(f"sum{r}_{e}")))
            last.append(Store(target, (*at, Extent(dv)), f32_name(f"most{r}")))
            last.append(Store(target, (*at, Extent(dv + 1)), f32_name(f"total{r}")))
        return [*statements, When(Call("equal", (LANE, ZERO), bool_), tuple(last))]


def _number(at: At) -> int:
    """The number of a score among those of a lane."""
    (number,) = at
    assert isinstance(number, Extent) and isinstance(number.size, int), "a lane has few keys"
    return number.size


__all__ = ["LaneKeys"]

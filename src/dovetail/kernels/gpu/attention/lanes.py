"""Products and softmax of an attention of few queries by multiply-adds: no tensor core, and no barrier between lanes.

A warp has 8 keys in a round. Neighbouring lanes share the features of a key, so that a few shuffles sum a score; the
largest of a round is found by shuffles too. Each lane then has a few columns of the values, and takes the weight of
every key from the lane that has it. Any product by tensor cores lowers the clock of an H200 by a tenth, so that a
resident kernel without one is faster in all of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bool_, f32, u8, u16, u32, u64
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.lane_rows import with_lane
from dovetail.kernels.gpu.attention.shifts import LOG2_E
from dovetail.kernels.gpu.attention.softmax import NEXT
from dovetail.kernels.gpu.attention.tile import MINUS_INFINITY, AttendTile, f32_name, minus, times
from dovetail.kernels.gpu.gemm.fragments import LANE, Factor, both, divided, less, plus, remainder
from dovetail.kernels.gpu.gemm.shared_tiles import SharedTile
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
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


@dataclass(frozen=True, slots=True)
class LaneKeys:
    """What a warp does with the keys and values of a round."""

    block: AttendTile
    tiles: Mapping[str, SharedTile]
    factors: Mapping[str, Factor]

    @property
    def rows(self) -> range:
        assert isinstance(self.block.problem.queries, int), "few queries are known"
        return range(self.block.problem.queries)

    @property
    def sharing(self) -> int:
        return self.block.sharing

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
        found: list[Statement] = []
        for r in self.rows:
            found += [Set(f"most{r}", MINUS_INFINITY), Set(f"total{r}", Number(0.0, f32))]
            found += [Set(f"sum{r}_{e}", Number(0.0, f32)) for e in range(self._columns)]
        return found

    def _key(self, first: Expr, number: int) -> Expr:
        return add(first, add(divided(LANE, self.sharing), Extent(number * self._at_once)))

    def _masks(self) -> list[tuple[str, DType, range]]:
        """Masks with the rows that differ: those of heads that share keys are often the same. Conditions are held as
        the bytes that they are, so that nothing waits for them where they are loaded."""
        strides = self.block.problem.strides
        kinds = [(name, dtype) for name, dtype in (("mask", self.block.dtype), ("keep", u8)) if name in strides]
        return [(name, dtype, range(1) if strides[name][-2] == 0 else self.rows) for name, dtype in kinds]

    def _held(self, name: str, dtype: DType, row: int, when: str = "") -> Tensor:
        return Tensor(f"{name}{row}{when}", dtype, (dtype.itemsize,), space="private")

    def masks_allocated(self) -> list[Alloc]:
        """Registers for masks of a round and of the next one."""
        return [
            Alloc(self._held(name, dtype, r, when).pointer, dtype, len(self.passes), "private")
            for name, dtype, rows in self._masks()
            for r in rows
            for when in ("", NEXT)
        ]

    def masks_loaded(self, number: Expr, when: str = "") -> list[Statement]:
        """Masks of the keys of a round, before its scores: they take as long to load as keys do."""
        a, found = self.block.problem, list[Statement]()
        for name, dtype, rows in self._masks():
            for r in rows:
                for p in self.passes:
                    key = minimum(self._key(self.block.first_key(number), p), Extent(a.keys - 1))
                    load = Load(Tensor(name, dtype, a.strides[name]), (*self.block.lead, Extent(r), key))
                    found.append(Store(self._held(name, dtype, r, when), (Extent(p),), load))
        return found

    def masks_moved(self) -> list[Statement]:
        """The next round's masks become those of the round."""
        return [
            Store(self._held(name, dtype, r), (Extent(p),), Load(self._held(name, dtype, r, NEXT), (Extent(p),)))
            for name, dtype, rows in self._masks()
            for r in rows
            for p in self.passes
        ]

    def scored(self) -> list[Statement]:
        """The products of queries and keys, in all lanes that share a key."""
        found: list[Statement] = [Set(f"score{p}_{r}", Number(0.0, f32)) for p in self.passes for r in self.rows]
        count = self.block.problem.d // (CHUNK * self.sharing)
        found.append(Loop("chunk", Extent(count), tuple(self._chunk_scored(Name("chunk"))), rolled=True))
        found += [AllReduce(f"score{p}_{r}", "add", f32, self.sharing) for p in self.passes for r in self.rows]
        return found

    def _chunk_scored(self, number: Expr) -> list[Statement]:
        """A chunk of each lane. It is a loop: all blocks wait for code, which is read once in each pass."""
        found, keys = list[Statement](), list[list[Expr]]()
        chunk = add(mul(number, Extent(self.sharing)), remainder(LANE, self.sharing))
        for p in self.passes:
            line = add(divided(LANE, self.sharing), Extent(p * self._at_once))
            found += self._words(f"keys_of{p}", *self.tiles["k"].place(Name("stage"), line, chunk))
            keys.append(self._widened(found, f"keys_of{p}", _WORDS))
        for r in self.rows:
            found += self._query_words(f"query_of{r}", r, chunk)
            for e, q in enumerate(self._widened(found, f"query_of{r}", _WORDS)):
                for p in self.passes:
                    score = f32_name(f"score{p}_{r}")
                    found.append(Set(score.name, Call("fma", (q, keys[p][e], score), f32)))
        return found

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

    def _widened(self, found: list[Statement], name: str, count: int) -> list[Expr]:
        """Elements of words, in f32."""
        every: list[Expr] = []
        for w in range(count):
            word = Name(f"{name}_{w}", u32)
            for half in range(2):
                bits = Call("shift_right", (word, Number(16, u32)), u32) if half else word
                found.append(Set(f"{name}_{w}{'ab'[half]}", self._wide(cast_to(bits, u16))))
                every.append(f32_name(f"{name}_{w}{'ab'[half]}"))
        return every

    def _wide(self, bits: Expr) -> Expr:
        return cast_to(Call("bitcast", (bits,), self.block.dtype), f32)

    def weighted(self) -> list[Statement]:
        """Scores with masks; their powers, and what the sums so far shrink by."""
        a, found = self.block.problem, list[Statement]()
        first = self.block.first_key(Name("round"))
        found += [Set(f"inside{p}", less(self._key(first, p), Extent(a.keys))) for p in self.passes]
        for r in self.rows:
            most, round_most, safe = (f32_name(f"{name}{r}") for name in ("most", "round_most", "safe"))
            found.append(Set(round_most.name, MINUS_INFINITY))
            for p in self.passes:
                found.append(Set(f"score{p}_{r}", self._shown(p, r)))
                larger = Call("maximum", (round_most, f32_name(f"score{p}_{r}")), f32)
                found.append(Set(round_most.name, larger))
        for apart in self._strides():
            for r in self.rows:
                found += with_lane(f"round_most{r}", "maximum", apart)
        for r in self.rows:
            most, round_most, safe = (f32_name(f"{name}{r}") for name in ("most", "round_most", "safe"))
            largest = Call("maximum", (most, round_most), f32)
            # Without a key that is seen the scores are -inf, and their weights 0.
            none = Call("equal", (round_most, MINUS_INFINITY), bool_)
            found.append(Set(round_most.name, largest))
            found.append(Set(safe.name, Call("where", (none, Number(0.0, f32), round_most), f32)))
            found.append(Set(f"shrunk{r}", self.block.exp(minus(most, safe))))
            found.append(Set(most.name, round_most))
            total: Expr = times(f32_name(f"total{r}"), f32_name(f"shrunk{r}"))
            for p in self.passes:
                weight = f32_name(f"weight{p}_{r}")
                found.append(Set(weight.name, self.block.exp(minus(f32_name(f"score{p}_{r}"), safe))))
                total = plus(total, weight)
            found.append(Set(f"total{r}", total))
        return found

    def _strides(self) -> list[int]:
        """How far lanes are apart that have other keys."""
        return [n for n in (1, 2, 4, 8, 16) if n >= self.sharing]

    def _shown(self, p: int, r: int) -> Expr:
        """A score as the softmax sees it, as a power of 2."""
        a = self.block.problem
        scale = Number(a.scale * LOG2_E.value, f32)
        score: Expr = times(f32_name(f"score{p}_{r}"), scale)
        held = {n: Load(self._held(n, dtype, min(r, rows[-1])), (Extent(p),)) for n, dtype, rows in self._masks()}
        if "mask" in held:
            score = plus(score, times(cast_to(held["mask"], f32), LOG2_E))
        seen: Expr = Name(f"inside{p}", bool_)
        if "keep" in held:
            seen = both(seen, Call("not_equal", (held["keep"], Number(0, u8)), bool_))
        return Call("where", (seen, score, MINUS_INFINITY), f32)

    def summed(self) -> list[Statement]:
        """The products of weights and values, added to sums that shrink first."""
        found: list[Statement] = []
        for r in self.rows:
            for e in range(self._columns):
                name = f32_name(f"sum{r}_{e}")
                found.append(Set(name.name, times(name, f32_name(f"shrunk{r}"))))
        return [*found, Loop("own", Extent(self._at_once), tuple(self._own_summed(Name("own"))), rolled=True)]

    def _own_summed(self, number: Expr) -> list[Statement]:
        """The keys of some lanes that share one, by the columns of each lane."""
        found: list[Statement] = [Set("from", mul(number, Extent(self.sharing)))]
        for p in self.passes:
            values = self._values(found, p, add(number, Extent(p * self._at_once)))
            for r in self.rows:
                found.append(FromLane(f"given{r}", f"weight{p}_{r}", Name("from"), f32))
                for e, value in enumerate(values):
                    name = f32_name(f"sum{r}_{e}")
                    found.append(Set(name.name, Call("fma", (f32_name(f"given{r}"), value, name), f32)))
        return found

    def _values(self, found: list[Statement], p: int, line: Expr) -> list[Expr]:
        """The columns of a lane of a value, by words that are as wide as these: LLVM sees no alignment in a loop."""
        many = min(self._columns, len(_OF_VALUES))
        kind, first = _OF_VALUES[many - 1], mul(LANE, Extent(self._columns))
        tensor, at = self.tiles["v"].place(Name("stage"), line, divided(first, CHUNK), remainder(first, CHUNK))
        every: list[Expr] = []
        for w in range(self._columns // many):
            word = Name(f"values_of{p}_{w}", kind)
            words = replace(tensor, dtype=kind, strides=(*tensor.strides[:-1], kind.itemsize))
            place = add(divided(at[-1], many), Extent(w))
            found.append(Set(word.name, Load(words, (*at[:-1], place))))
            for i in range(max(1, many // 2)):
                pair = Call("shift_right", (word, Number(32 * i, kind)), kind) if i else word
                found.append(Set(f"{word.name}_{i}", cast_to(pair, u32)))
            every += self._widened(found, word.name, max(1, many // 2))[:many]
        return every

    def stored(self, target: Tensor) -> list[Statement]:
        """What a warp has of each query: weighted sums, the largest score and the total."""
        found, own, dv = list[Statement](), self._columns, self.block.dv
        for apart in self._strides():
            for r in self.rows:
                found += with_lane(f"total{r}", "add", apart)
        last: list[Statement] = []
        for r in self.rows:
            at = (ThreadIndex("warp"), Extent(r))
            for e in range(own):
                column = add(mul(LANE, Extent(own)), Extent(e))
                found.append(Store(target, (*at, column), f32_name(f"sum{r}_{e}")))
            last.append(Store(target, (*at, Extent(dv)), f32_name(f"most{r}")))
            last.append(Store(target, (*at, Extent(dv + 1)), f32_name(f"total{r}")))
        return [*found, When(Call("equal", (LANE, ZERO), bool_), tuple(last))]


__all__ = ["LaneKeys"]

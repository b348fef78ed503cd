"""Masks of an attention: as bits of the keys that are seen, and as shifts in shared memory.

The lanes of a warp load neighbouring keys of one query at a time. If each loaded what its own scores need, one load
would touch eight rows of the mask, and loads of masks would take longer than all products. Rounds in which no query of
a warp sees a key are left out.

Bits are loaded wide where rows of the mask allow it: a lane has 32 keys of one query of its warp. Rows of the mask
begin anywhere, as the number of keys is any. So a lane loads the 48 bytes from a multiple of 16 on that hold its 32,
makes them a number of 48 bits, and shifts that. Loads of one key each take four times as many instructions.

A padding mask is the same for all queries. If each lane loaded what its own scores need, a warpgroup would wait for
memory between scores and weights in every round; a thread for each key loads it while the round before is computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bool_, f32, i64, u8, u32, u64
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.softmax import MINUS_INFINITY, At, LaneRow, Numerics, times
from dovetail.kernels.gpu.attention.tile import GROUP, GROUP_WARPS, AttendTile, GroupTile
from dovetail.kernels.gpu.gemm.fragments import LANE, both, divided, less, plus, private, remainder, unrolled
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Ballot,
    Call,
    Expr,
    Extent,
    FromLane,
    Load,
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
from dovetail.kernels.problems.attention import Attention
from dovetail.ops.view import quotient

_LOAD = 16
"""Bytes of a load."""
_LOADS = 3
"""Loads of a lane: 32 bytes from anywhere on."""
_WORDS = _LOADS * _LOAD // 4
_FIRST_BITS, _GATHER = 0x01010101, 0x01020408
"""The bits of four bools, and the factor by which they become the four bits from 24 on."""


def loads_wide(a: Attention, alignment: int) -> bool:
    """Whether the mask has whole loads, the last of which ends where it ends."""
    if not isinstance(a.queries, int):
        return False
    *lead, row, key = a.strides["keep"]
    whole = all(quotient(step, _LOAD) is not None for step in (*lead, a.queries * row))
    return whole and key == 1 and row == a.keys and alignment % _LOAD == 0 and a.queries >= _LOADS * _LOAD


def words_allocated() -> Alloc:
    """Registers for what a lane loads of the mask."""
    return Alloc("mask_words", u32, _WORDS, "private")


def words_loaded(tile: AttendTile, number: Expr) -> list[Statement]:
    """Load what the lane has of the mask in a round."""
    a, w = tile.problem, Name("w")
    *lead, row, _ = a.strides["keep"]
    first = add(Name("top"), mul(remainder(ThreadIndex("warp"), tile.warps), Extent(16)))
    query = minimum(add(first, divided(LANE, 2)), Extent(a.queries - 1))
    key = add(tile.first_key(number), mul(remainder(LANE, 2), Extent(LANES)))
    last = quotient(a.queries * row, _LOAD)
    assert last is not None, "the mask has whole loads"
    source, chunk, at = Tensor("keep", u32, (*lead, _LOAD, u32.itemsize)), Name("mask_chunk"), Name("mask_at")
    return [
        Set("mask_key", key),
        Set(at.name, add(mul(query, Extent(row)), Name("mask_key"))),
        Set(chunk.name, minimum(divided(at, _LOAD), Extent(last - _LOADS))),
        # Where the last load is before the lane's keys, it has none of them: what is shifted out is zeros.
        Set("mask_past", minimum(Call("sub", (at, mul(chunk, Extent(_LOAD))), i64), Extent(2 * LANES - 1))),
        Set("mask_left", minimum(Call("sub", (Extent(a.keys), Name("mask_key")), i64), Extent(LANES))),
        unrolled("w", _WORDS, Store(_loaded_words(), (w,), Load(source, (*tile.lead, chunk, w)))),
    ]


def _loaded_words() -> Tensor:
    return private("mask_words", u32, _WORDS)


def word_gathered() -> list[Statement]:
    """`seen`, the bits of the lane's keys, and `some`, which is not 0 where a lane of the warp sees one."""
    statements: list[Statement] = [Set("low", Number(0, u32)), Set("high", Number(0, u32))]
    for w in range(_WORDS):
        name, place = ("low", w) if w < 8 else ("high", w - 8)
        bools = Call("bit_and", (Load(_loaded_words(), (Extent(w),)), Number(_FIRST_BITS, u32)), u32)
        four = Call("shift_right", (Call("mul", (bools, Number(_GATHER, u32)), u32), Number(24, u32)), u32)
        four = Call("shift_left", (four, Number(4 * place, u32)), u32)
        statements.append(Set(name, Call("bit_or", (Name(name, u32), four), u32)))
    high = Call("shift_left", (cast_to(Name("high", u32), u64), Number(32, u64)), u64)
    every = Call("bit_or", (high, cast_to(Name("low", u32), u64)), u64)
    own = cast_to(Call("shift_right", (every, cast_to(Name("mask_past"), u64)), u64), u32)
    # Keys after the last one are not seen: as many of the first bits count as there are keys.
    after = Call("sub", (Extent(LANES), Call("maximum", (Name("mask_left"), Extent(0)), i64)), i64)
    there = Call("shift_right", (Number(0xFFFFFFFF, u32), cast_to(after, u32)), u32)
    return [
        *statements,
        Set("seen", Call("bit_and", (own, there), u32)),
        Set("one", Call("not_equal", (Name("seen", u32), Number(0, u32)), bool_)),
        Ballot("some", "one"),
    ]


def word_lane(half: int, word: int) -> Expr:
    """The lane that has a word of a query of this lane."""
    return add(mul(add(divided(LANE, 4), Extent(8 * half)), Extent(2)), Extent(word))


def has_keys(tile: AttendTile) -> Expr:
    """Whether there is a key at all, where that is not known."""
    return less(Extent(0), Extent(tile.problem.keys))


_QUERIES = 16
"""Queries of a warp."""
_NONE = Number(0, u32)
_TIMES = ("", "_next", "_after", "_last")
"""After the name of bits: those of the round, and of the ones after it."""
ROUNDS = 4
"""Rounds of which it is known whether warps see a key: this one and those after it."""


def _flags(tile: AttendTile) -> Tensor:
    """Which warps see a key, of some rounds in turn."""
    item = u32.itemsize
    return Tensor("flags", u32, (tile.threads // LANES * item, item), space="shared")


def seen_allocated(tile: AttendTile) -> list[Alloc]:
    """Registers for what a lane loads of the mask."""
    if not tile.leaves_out:
        return []
    flags = [Alloc("flags", u32, ROUNDS * tile.threads // LANES, "shared")] if tile.sees_ahead else []
    loaded = words_allocated() if tile.sees_ahead else Alloc("sees", bool_, _QUERIES * _words(tile), "private")
    return [loaded, *flags]


def _words(tile: AttendTile) -> int:
    """Words of bits for the keys of a round."""
    return -(-tile.warp_keys // LANES)


def _sees(tile: AttendTile) -> Tensor:
    return private("sees", bool_, _QUERIES, _words(tile))


def seen_loaded(tile: AttendTile, number: Expr) -> list[Statement]:
    """Load a key of each word for each query; keys beyond the last one are not seen."""
    if not tile.leaves_out:
        return []
    if tile.sees_ahead:
        return words_loaded(tile, number)
    a, row, source = tile.problem, Name("row"), Tensor("keep", bool_, tile.problem.strides["keep"])
    first = add(Name("top"), mul(remainder(ThreadIndex("warp"), tile.warps), Extent(_QUERIES)))
    query = minimum(add(first, row), Extent(a.queries - 1))
    statements: list[Statement] = []
    for word in range(_words(tile)):
        key = add(tile.first_key(number), add(LANE, Extent(word * LANES)))
        there, at = Name(f"there{word}", bool_), Name(f"seen_key{word}")
        statements += [Set(at.name, minimum(key, Extent(a.keys - 1))), Set(there.name, less(key, Extent(a.keys)))]
        sees = Call("bit_and", (Load(source, (*tile.lead, query, at)), there), bool_)
        statements.append(unrolled("row", _QUERIES, Store(_sees(tile), (row, Extent(word)), sees)))
    return statements


def where_seen(tile: AttendTile, work: Sequence[Statement]) -> list[Statement]:
    """What a warp does in a round, with the bits of each lane's queries; nothing where none of them sees a key."""
    if not tile.leaves_out:
        return [*work]
    sees_some = Call("not_equal", (Name("some", u32), _NONE), bool_)
    return [*_gathered(tile), When(sees_some, tuple(work))]


def _gathered(tile: AttendTile, when: str = "") -> list[Statement]:
    """The bits of each lane's queries, from what all lanes have loaded, and those of all queries together."""
    if tile.sees_ahead:
        return [*word_gathered(), *_own_bits(tile, when)]
    row, some = Name("row"), Name("some", u32)
    statements: list[Statement] = [Set(some.name, _NONE)]
    for word in range(_words(tile)):
        kept, bits = Name(f"seen{word}", u32), Name("ballot", u32)
        is_own = Call("equal", (LANE, row), bool_)
        statements += [
            Set(kept.name, _NONE),
            unrolled(
                "row",
                _QUERIES,
                Set("one", Load(_sees(tile), (row, Extent(word)))),
                Ballot(bits.name, "one"),
                Set(some.name, Call("bit_or", (some, bits), u32)),
                Set(kept.name, Call("where", (is_own, bits, kept), u32)),
            ),
        ]
    return [*statements, *_own_bits(tile, when)]


def _own_bits(tile: AttendTile, when: str) -> list[Statement]:
    """The bits of a lane's queries from the lanes that have them."""
    mine: list[Statement] = []
    for word in range(_words(tile)):
        for half in tile.lane_rows:
            name = _bits(half, word).name + when
            if tile.sees_ahead:
                mine.append(FromLane(name, "seen", word_lane(half.number, word), u32))
            else:
                mine.append(FromLane(name, f"seen{word}", add(divided(LANE, 4), Extent(8 * half.number)), u32))
            # The first key of a lane is its first bit.
            shift = cast_to(mul(remainder(LANE, 4), Extent(2)), u32)
            mine.append(Set(name, Call("shift_right", (Name(name, u32), shift), u32)))
    return mine


def ranges_seen(tile: AttendTile) -> list[Statement]:
    """The bits of each lane's queries where they see keys from one to another."""
    a, every = tile.problem, Number(0xFFFFFFFF, u32)
    statements: list[Statement] = []
    for half in tile.lane_rows:
        query = Name(half.query)
        end = minimum(add(query, Extent(1)), Extent(a.keys)) if a.causal else Extent(a.keys)
        for word in range(_words(tile)):
            first = add(tile.first_key(Name("round")), Extent(word * LANES))
            # The first bits, as many as there are keys before the end.
            bits = Call("shift_right", (every, _place(_less_by(add(first, Extent(LANES)), end))), u32)
            if a.causal and a.window is not None:
                begin = _less_by(add(query, Extent(1)), add(first, Extent(a.window)))
                bits = Call("bit_and", (bits, Call("shift_left", (every, _place(begin)), u32)), u32)
            own = cast_to(mul(remainder(LANE, 4), Extent(2)), u32)
            statements.append(Set(_bits(half, word).name, Call("shift_right", (bits, own), u32)))
    return statements


def _less_by(x: Expr, y: Expr) -> Expr:
    return Call("sub", (x, y), i64)


def _place(x: Expr) -> Expr:
    """A number of bits of a word, from 0 to all of them."""
    return cast_to(minimum(Call("maximum", (x, Extent(0)), i64), Extent(LANES)), u32)


def _bits(half: LaneRow, word: int) -> Name:
    return Name(f"sees{half.number}_{word}", u32)


def is_seen(tile: AttendTile, half: LaneRow) -> Expr:
    """Whether a query of a lane sees key e of the pair j of that lane in this round."""
    j, e = Name("j"), Name("e")
    pairs = LANES // 8
    bits: Expr = _bits(half, 0)
    for word in range(1, _words(tile)):
        bits = Call("where", (less(j, Extent(word * pairs)), bits, _bits(half, word)), u32)
    place = cast_to(add(mul(remainder(j, pairs), Extent(8)), e), u32)
    one = Call("bit_and", (Call("shift_right", (bits, place), u32), Number(1, u32)), u32)
    return Call("not_equal", (one, _NONE), bool_)


@dataclass(frozen=True, slots=True)
class SeenAhead:
    """What the queries of a warpgroup see some rounds ahead: nothing is copied of keys that none of them sees.

    Warps exchange in shared memory whether they see a key, so that those of a group leave out a round together.
    """

    tile: AttendTile

    @property
    def ahead(self) -> int:
        """Rounds ahead: keys are copied one or two rounds before their weights, and their flags are stored before."""
        return 3 if self.tile.overlaps else 2

    def first(self) -> list[Statement]:
        """What is seen in the first rounds."""
        statements: list[Statement] = []
        for number, when in enumerate(_TIMES[: self.ahead]):
            statements += [
                *seen_loaded(self.tile, Extent(number)),
                *_gathered(self.tile, when),
                self._flagged(Extent(number)),
            ]
        # Without a key there is no mask, and no round.
        keys = self.tile.problem.keys
        return statements if isinstance(keys, int) and keys > 0 else [When(has_keys(self.tile), tuple(statements))]

    def _flagged(self, slot: Expr) -> Statement:
        warp = ThreadIndex("warp")
        tell = Store(_flags(self.tile), (slot, warp), Name("some", u32))
        return When(Call("equal", (LANE, Extent(0)), bool_), (tell,))

    def where(self, number: Expr, work: Sequence[Statement]) -> list[Statement]:
        """Work of a warpgroup, where one of its queries sees a key of a round."""
        slot, bits, first = remainder(number, ROUNDS), Name("bits", u32), mul(GROUP, Extent(GROUP_WARPS))
        statements: list[Statement] = [Set(bits.name, _NONE)]
        for warp in [add(first, Extent(i)) for i in range(GROUP_WARPS)]:
            statements.append(Set(bits.name, Call("bit_or", (bits, Load(_flags(self.tile), (slot, warp))), u32)))
        return [*statements, When(Call("not_equal", (bits, _NONE), bool_), tuple(work))]

    def loaded(self) -> list[Statement]:
        """Load the mask of the first round of which it is not known what is seen."""
        return [Set("unseen", add(Name("round"), Extent(self.ahead))), *seen_loaded(self.tile, Name("unseen"))]

    def kept(self) -> list[Statement]:
        """What is seen in that round, before a barrier."""
        return [*_gathered(self.tile, _TIMES[self.ahead]), self._flagged(remainder(Name("unseen"), ROUNDS))]

    def moved(self) -> list[Statement]:
        """The next round becomes this one."""
        statements: list[Statement] = []
        for to, of in pairwise(_TIMES[: self.ahead + 1]):
            for word in range(_words(self.tile)):
                for half in self.tile.lane_rows:
                    name = _bits(half, word).name
                    statements.append(Set(name + to, Name(name + of, u32)))
        return statements


_SHIFTS, _SHIFT = "shifts", "shift"
_SLOTS = 2
"""Rounds in shared memory: this one and the next."""


@dataclass(frozen=True, slots=True)
class Shifts:
    """The shifts of the keys of a round."""

    tile: AttendTile

    @property
    def are_ahead(self) -> bool:
        """Whether all queries have the same shifts, and a warpgroup has barriers between rounds anyway."""
        strides = self.tile.problem.strides.get("mask")
        return strides is not None and strides[-2] == 0 and self.tile.overlaps

    def allocated(self) -> list[Alloc]:
        return [Alloc(_SHIFTS, f32, _SLOTS * self.tile.keys, "shared")] if self.are_ahead else []

    @property
    def _room(self) -> Tensor:
        item = f32.itemsize
        return Tensor(_SHIFTS, f32, (self.tile.keys * item, item), space="shared")

    @property
    def _own(self) -> Expr:
        """The key of a round whose shift this thread loads."""
        return remainder(ThreadIndex("thread"), self.tile.keys)

    def loaded(self, number: Expr) -> list[Statement]:
        """Load the shift of a key of a round; one beyond the last key counts for nothing."""
        if not self.are_ahead:
            return []
        a = self.tile.problem
        key = minimum(add(self.tile.first_key(number), self._own), Extent(a.keys - 1))
        source = Tensor("mask", self.tile.dtype, a.strides["mask"])
        return [Set("shift_key", key), Set(_SHIFT, Load(source, (*self.tile.lead, ZERO, Name("shift_key"))))]

    def kept(self, number: Expr) -> list[Statement]:
        """The shifts of a round in shared memory, before a barrier."""
        if not self.are_ahead:
            return []
        value = self.tile.numerics.of_mask(Name(_SHIFT, self.tile.dtype))
        store = Store(self._room, (remainder(number, _SLOTS), self._own), value)
        return [When(less(ThreadIndex("thread"), Extent(self.tile.keys)), (store,))]

    def at(self, key: Expr) -> Expr:
        """The shift of a key of this round."""
        return Load(self._room, (remainder(Name("round"), _SLOTS), key))


NEXT = "_next"
"""After the name of what a lane holds: that of the next round."""
KINDS = ("mask", "keep")


class HeldMasks(ABC):
    """Masks of the keys of a round that a lane loads before their scores: they take as long to load as keys do.

    Conditions are held as the bytes that they are in memory: a lane that made predicates of them would wait for them
    where it loads them.
    """

    block: AttendTile

    @abstractmethod
    def each(self, body: Callable[[At], Sequence[Statement]]) -> list[Statement]:
        """Statements for each score of a query in a lane."""

    @abstractmethod
    def place(self, row: LaneRow, number: Expr, at: At) -> tuple[list[Statement], At]:
        """The query and key of a score in a round, which both are there, and what must be computed for that."""

    @property
    @abstractmethod
    def counts(self) -> tuple[int, ...]:
        """Scores of a query in a lane along each axis of a place."""

    @abstractmethod
    def rows_of(self, name: str) -> Sequence[LaneRow]:
        """The queries that have a mask of their own."""

    @property
    def masks(self) -> list[tuple[str, DType]]:
        return [(n, self.block.dtype if n == "mask" else u8) for n in KINDS if n in self.block.problem.strides]

    def held(self, name: str, row: LaneRow, when: str = "") -> Tensor:
        return private(f"{name}{row.number}{when}", dict(self.masks)[name], *self.counts)

    def allocated(self) -> list[Alloc]:
        """Registers for masks of a round and of the next one."""
        return [
            Alloc(self.held(name, row, when).pointer, dtype, math.prod(self.counts), "private")
            for name, dtype in self.masks
            for row in self.rows_of(name)
            for when in ("", NEXT)
        ]

    def loaded(self, number: Expr, when: str = "") -> list[Statement]:
        """Load the masks of a round."""
        statements: list[Statement] = []
        for name, dtype in self.masks:
            source = Tensor(name, dtype, self.block.problem.strides[name])
            for row in self.rows_of(name):

                def one(at: At, source: Tensor = source, name: str = name, row: LaneRow = row) -> list[Statement]:
                    before, place = self.place(row, number, at)
                    load = Load(source, (*self.block.lead, *place))
                    return [*before, Store(self.held(name, row, when), at, load)]

                statements += self.each(one)
        return statements

    def moved(self) -> list[Statement]:
        """The next round's masks become those of the round."""
        statements: list[Statement] = []
        for name, _ in self.masks:
            for row in self.rows_of(name):
                to, of = self.held(name, row), self.held(name, row, NEXT)
                statements += self.each(lambda at, to=to, of=of: [Store(to, at, Load(of, at))])
        return statements

    def of(self, row: LaneRow, at: At) -> dict[str, Expr]:
        """The mask of a score, and whether its key is kept."""
        masks: dict[str, Expr] = {}
        for name, _ in self.masks:
            own = row if row in self.rows_of(name) else self.rows_of(name)[-1]
            masks[name] = Load(self.held(name, own), at)
        return masks | ({"keep": is_kept(masks["keep"])} if "keep" in masks else {})


def is_kept(byte: Expr) -> Expr:
    """A condition that is held as the byte that it is in memory."""
    return Call("not_equal", (byte, Number(0, u8)), bool_)


def masked(
    a: Attention,
    numerics: Numerics,
    score: Expr,
    mask: Expr | None,
    seen: Sequence[Expr],
    there: Expr | None = None,
) -> Expr:
    """A score as the softmax sees it: with its mask, and the fill where one of `seen` does not hold; nothing is seen of
    a key that is not `there`."""
    if not numerics.is_folded:
        score = numerics.scaled(score)
    if a.softcap is not None:
        bent = Call("tanh", (Call("div", (score, Number(a.softcap, f32)), f32),), f32)
        score = times(bent, Number(a.softcap, f32))
    if mask is not None and a.filled != "first":
        score = plus(score, mask)
    if seen:
        fill = Number(-math.inf if a.fill is None else a.fill, f32)
        if a.filled == "added":
            score = plus(score, Call("where", (both(*seen), Number(0.0, f32), fill), f32))
        else:
            score = Call("where", (both(*seen), score, fill), f32)
    if mask is not None and a.filled == "first":
        score = plus(score, mask)
    return score if there is None else Call("where", (there, score, MINUS_INFINITY), f32)


def shown(tile: AttendTile, score: Expr, row: LaneRow, at: At, held: HeldMasks | None = None) -> Expr:
    """A score of key `key` as the softmax sees it, with masks from where the tile has them."""
    a, key, query = tile.problem, Name("key"), Name(row.query)
    inside = minimum(query, Extent(a.queries - 1)), minimum(key, Extent(a.keys - 1))
    masks: dict[str, Expr] = {}
    if held is not None:
        masks = held.of(row, at)
    else:
        for name, dtype in (("mask", tile.dtype), ("keep", bool_)):
            if name in a.strides:
                masks[name] = Load(Tensor(name, dtype, a.strides[name]), (*tile.lead, *inside))
    if tile.leaves_out:
        masks["keep"] = is_seen(tile, row)
    seen: list[Expr] = [masks["keep"]] if "keep" in masks else []
    if tile.sees_ranges:
        seen.append(is_seen(tile, row))
    elif a.causal:
        seen.append(less(key, add(query, Extent(1))))
        if a.window is not None:
            seen.append(less(query, add(key, Extent(a.window))))
    mask = tile.numerics.of_mask(masks["mask"]) if "mask" in masks else None
    shifts = Shifts(tile)
    if shifts.are_ahead:
        mask = shifts.at(add(mul(remainder(LANE, 4), Extent(2)), add(mul(Name("j"), Extent(8)), Name("e"))))
    # Keys beyond the last one are hidden, or there are none.
    is_full = isinstance(tile, GroupTile) and isinstance(a.keys, int) and a.keys % tile.keys == 0
    there = None if tile.leaves_out or tile.sees_ranges or is_full else less(key, Extent(a.keys))
    return masked(a, tile.numerics, score, mask, seen, there)


__all__ = [
    "NEXT",
    "HeldMasks",
    "SeenAhead",
    "Shifts",
    "loads_wide",
    "masked",
    "ranges_seen",
    "seen_allocated",
    "seen_loaded",
    "shown",
    "where_seen",
]

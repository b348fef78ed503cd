"""Which keys the queries of a warp see, as bits: rounds in which they see none are left out.

The lanes of a warp load neighbouring keys of one query at a time. If each loaded what its own scores need, one load
would touch eight rows of the mask, and loads of masks would take longer than all products.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64, u32
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.bits import has_keys, word_gathered, word_lane, words_allocated, words_loaded
from dovetail.kernels.gpu.attention.lane_rows import LaneRow
from dovetail.kernels.gpu.attention.tile import GROUP, GROUP_WARPS, AttendTile
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, less, private, remainder, unrolled
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
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
    found: list[Statement] = []
    for word in range(_words(tile)):
        key = add(tile.first_key(number), add(LANE, Extent(word * LANES)))
        there, at = Name(f"there{word}", bool_), Name(f"seen_key{word}")
        found += [Set(at.name, minimum(key, Extent(a.keys - 1))), Set(there.name, less(key, Extent(a.keys)))]
        sees = Call("bit_and", (Load(source, (*tile.lead, query, at)), there), bool_)
        found.append(unrolled("row", _QUERIES, Store(_sees(tile), (row, Extent(word)), sees)))
    return found


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
    found: list[Statement] = [Set(some.name, _NONE)]
    for word in range(_words(tile)):
        kept, bits = Name(f"seen{word}", u32), Name("ballot", u32)
        is_own = Call("equal", (LANE, row), bool_)
        found += [
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
    return [*found, *_own_bits(tile, when)]


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
    found: list[Statement] = []
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
            found.append(Set(_bits(half, word).name, Call("shift_right", (bits, own), u32)))
    return found


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
        """Rounds: keys are copied one or two before the round of their weights, and what is seen is told before."""
        return 3 if self.tile.overlaps else 2

    def first(self) -> list[Statement]:
        """What is seen in the first rounds."""
        found: list[Statement] = []
        for number, when in enumerate(_TIMES[: self.ahead]):
            found += [*seen_loaded(self.tile, Extent(number)), *_gathered(self.tile, when), self._told(Extent(number))]
        # Without a key there is no mask, and no round.
        keys = self.tile.problem.keys
        return found if isinstance(keys, int) and keys > 0 else [When(has_keys(self.tile), tuple(found))]

    def _told(self, slot: Expr) -> Statement:
        warp = ThreadIndex("warp")
        tell = Store(_flags(self.tile), (slot, warp), Name("some", u32))
        return When(Call("equal", (LANE, Extent(0)), bool_), (tell,))

    def where(self, number: Expr, work: Sequence[Statement]) -> list[Statement]:
        """Work of a warpgroup, where one of its queries sees a key of a round."""
        slot, bits, first = remainder(number, ROUNDS), Name("bits", u32), mul(GROUP, Extent(GROUP_WARPS))
        found: list[Statement] = [Set(bits.name, _NONE)]
        for warp in [add(first, Extent(i)) for i in range(GROUP_WARPS)]:
            found.append(Set(bits.name, Call("bit_or", (bits, Load(_flags(self.tile), (slot, warp))), u32)))
        return [*found, When(Call("not_equal", (bits, _NONE), bool_), tuple(work))]

    def loaded(self) -> list[Statement]:
        """Load the mask of the first round of which it is not known what is seen."""
        return [Set("unseen", add(Name("round"), Extent(self.ahead))), *seen_loaded(self.tile, Name("unseen"))]

    def kept(self) -> list[Statement]:
        """What is seen in that round, before a barrier."""
        return [*_gathered(self.tile, _TIMES[self.ahead]), self._told(remainder(Name("unseen"), ROUNDS))]

    def moved(self) -> list[Statement]:
        """The next round becomes this one."""
        found: list[Statement] = []
        for to, of in pairwise(_TIMES[: self.ahead + 1]):
            for word in range(_words(self.tile)):
                for half in self.tile.lane_rows:
                    name = _bits(half, word).name
                    found.append(Set(name + to, Name(name + of, u32)))
        return found


__all__ = ["SeenAhead", "is_seen", "ranges_seen", "seen_allocated", "seen_loaded", "where_seen"]

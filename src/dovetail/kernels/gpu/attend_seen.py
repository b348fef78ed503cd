"""Which keys the queries of a warp see, as bits: rounds in which they see none are left out.

The lanes of a warp load neighbouring keys of one query at a time. If each loaded what its own scores need, one load
would touch eight rows of the mask, and loads of masks would take longer than all products.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.dtype import bool_, u32
from dovetail.kernels.gpu.attend_tile import AttendTile, Half
from dovetail.kernels.gpu.fragments import LANE, divided, less, private, remainder, unrolled
from dovetail.kernels.gpu.tile import LANES
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.exchange import Ballot, FromLane
from dovetail.kernels.loops.ir import (
    Alloc,
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
    ThreadIndex,
    When,
    add,
    minimum,
    mul,
)

_QUERIES = 16
"""Queries of a warp."""
_NONE = Number(0, u32)


def seen_allocated(tile: AttendTile) -> list[Alloc]:
    """Registers for what a lane loads of the mask."""
    return [Alloc("sees", bool_, _QUERIES * _words(tile), "private")] if tile.leaves_out else []


def _words(tile: AttendTile) -> int:
    """Words of bits for the keys of a round."""
    return tile.warp_keys // LANES


def _sees(tile: AttendTile) -> Tensor:
    return private("sees", bool_, _QUERIES, _words(tile))


def seen_loaded(tile: AttendTile) -> list[Statement]:
    """Load a key of each word for each query; keys beyond the last one are not seen."""
    if not tile.leaves_out:
        return []
    a, row, source = tile.problem, Name("row"), Tensor("keep", bool_, tile.problem.strides["keep"])
    first = add(Name("top"), mul(remainder(ThreadIndex("warp"), tile.warps), Extent(_QUERIES)))
    query = minimum(add(first, row), Extent(a.queries - 1))
    found: list[Statement] = []
    for word in range(_words(tile)):
        key = add(tile.first_key(Name("round")), add(LANE, Extent(word * LANES)))
        there, at = Name(f"there{word}", bool_), Name(f"seen_key{word}")
        found += [Set(at.name, minimum(key, Extent(a.keys - 1))), Set(there.name, less(key, Extent(a.keys)))]
        sees = Call("bit_and", (Load(source, (*tile.lead, query, at)), there), bool_)
        found.append(unrolled("row", _QUERIES, Store(_sees(tile), (row, Extent(word)), sees)))
    return found


def where_seen(tile: AttendTile, work: Sequence[Statement]) -> list[Statement]:
    """What a warp does in a round, with the bits of each lane's queries; nothing where none of them sees a key."""
    if not tile.leaves_out:
        return [*work]
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
    mine: list[Statement] = []
    for word in range(_words(tile)):
        for half in tile.halves:
            name = _bits(half, word).name
            mine.append(FromLane(name, f"seen{word}", add(divided(LANE, 4), Extent(8 * half.number)), u32))
            # The first key of a lane is its first bit.
            shift = cast_to(mul(remainder(LANE, 4), Extent(2)), u32)
            mine.append(Set(name, Call("shift_right", (Name(name, u32), shift), u32)))
    sees_some = Call("not_equal", (some, _NONE), bool_)
    return [*found, *mine, When(sees_some, tuple(work))]


def _bits(half: Half, word: int) -> Name:
    return Name(f"sees{half.number}_{word}", u32)


def is_seen(tile: AttendTile, half: Half) -> Expr:
    """Whether a query of a lane sees key e of the pair j of that lane in this round."""
    j, e = Name("j"), Name("e")
    pairs = LANES // 8
    bits: Expr = _bits(half, 0)
    for word in range(1, _words(tile)):
        bits = Call("where", (less(j, Extent(word * pairs)), bits, _bits(half, word)), u32)
    place = cast_to(add(mul(remainder(j, pairs), Extent(8)), e), u32)
    one = Call("bit_and", (Call("shift_right", (bits, place), u32), Number(1, u32)), u32)
    return Call("not_equal", (one, _NONE), bool_)


__all__ = ["is_seen", "seen_allocated", "seen_loaded", "where_seen"]

"""A mask of bools as bits, by wide loads: a lane has 32 keys of one query of its warp.

Rows of the mask begin anywhere, as the number of keys is any. So a lane loads the 48 bytes from a multiple of 16 on
that hold its 32, makes them a number of 48 bits, and shifts that. Loads of one key each take four times as many
instructions.
"""

from __future__ import annotations

from dovetail.ir.dtype import bool_, i64, u32, u64
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.tile import AttendTile
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, less, private, remainder, unrolled
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    Alloc,
    Ballot,
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
        unrolled("w", _WORDS, Store(_words(), (w,), Load(source, (*tile.lead, chunk, w)))),
    ]


def _words() -> Tensor:
    return private("mask_words", u32, _WORDS)


def word_gathered() -> list[Statement]:
    """`seen`, the bits of the lane's keys, and `some`, which is not 0 where a lane of the warp sees one."""
    found: list[Statement] = [Set("low", Number(0, u32)), Set("high", Number(0, u32))]
    for w in range(_WORDS):
        name, place = ("low", w) if w < 8 else ("high", w - 8)
        bools = Call("bit_and", (Load(_words(), (Extent(w),)), Number(_FIRST_BITS, u32)), u32)
        four = Call("shift_right", (Call("mul", (bools, Number(_GATHER, u32)), u32), Number(24, u32)), u32)
        four = Call("shift_left", (four, Number(4 * place, u32)), u32)
        found.append(Set(name, Call("bit_or", (Name(name, u32), four), u32)))
    high = Call("shift_left", (cast_to(Name("high", u32), u64), Number(32, u64)), u64)
    every = Call("bit_or", (high, cast_to(Name("low", u32), u64)), u64)
    own = cast_to(Call("shift_right", (every, cast_to(Name("mask_past"), u64)), u64), u32)
    # Keys after the last one are not seen: as many of the first bits count as there are keys.
    after = Call("sub", (Extent(LANES), Call("maximum", (Name("mask_left"), Extent(0)), i64)), i64)
    there = Call("shift_right", (Number(0xFFFFFFFF, u32), cast_to(after, u32)), u32)
    return [
        *found,
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


__all__ = ["has_keys", "loads_wide", "word_gathered", "word_lane", "words_allocated", "words_loaded"]

"""Fifth bits of codes in other places: a file has those of neighbours next to each other, all in one byte.

Packed, the fifth bit of a code is in the same byte of a word as its four others. So four codes become whole at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dovetail import ops
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.library.block_formats import FORMATS, BlockParts, Format

SPREAD: Mapping[str, int] = {"q5_0": 2, "q5_1": 4}
"""Formats of such codes, and where a block has its fifth bits."""
_BYTES = 4


def with_spread(name: str) -> Format:
    """A format as it is packed."""
    return replace(FORMATS[name], parts={"q5_0": _q5_0, "q5_1": _q5_1}[name]) if name in SPREAD else FORMATS[name]


def spread(name: str, blocks: Array) -> Array:
    """Blocks [*, bytes] of a format as they are packed."""
    if name not in SPREAD:
        return blocks
    at, found = slice(SPREAD[name], SPREAD[name] + _BYTES), blocks.copy()
    bits = np.unpackbits(blocks[..., at], axis=-1, bitorder="little").reshape(*blocks.shape[:-1], 8, _BYTES)
    found[..., at] = np.packbits(bits.swapaxes(-1, -2), axis=-1, bitorder="little")[..., 0]
    return found


def _q5_0(block: Value) -> BlockParts:
    return _in_file("q5_0", block)


def _q5_1(block: Value) -> BlockParts:
    return _in_file("q5_1", block)


def _in_file(name: str, block: Value) -> BlockParts:
    """The parts of a packed block: those of the file's, with fifth bits in their places."""
    at = SPREAD[name]
    bits = ops.slice_(block, axis=-1, start=at, stop=at + _BYTES)
    fifth = ops.concat(*[ops.bit_and(bits if by == 0 else ops.shift_right(bits, by), 1) for by in range(8)], axis=-1)
    low = ops.slice_(block, axis=-1, start=at + _BYTES, stop=at + _BYTES + 16)
    every = [ops.bit_and(x, 15) for x in (low, ops.shift_right(low, 4))]
    codes = ops.bit_or(ops.concat(*every, axis=-1), ops.shift_left(fifth, 4))
    signed = ops.bitcast(codes, source="u8", target="i8")
    of, zero = FORMATS[name].parts(block), FORMATS[name].zero
    return of._replace(codes=ops.sub(signed, zero) if zero else signed)


__all__ = ["SPREAD", "spread", "with_spread"]

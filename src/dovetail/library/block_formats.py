"""Block formats: how blocks of bytes hold integer codes, a scale for each group of codes, and perhaps a lowest number.

Every format is the same sum: code * scale + low. One function for each format spells its three parts out in primitives;
`dequantise_blocks` puts them together, and kernels pack them. Formats are those of GGUF files, by their names there,
and three with scales in f32, in which other files' blocks are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f16, f32, i8, u8, u16, u32
from dovetail.ir.value import Value

BlockFormat = Literal[
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
    "int4", "int4_low", "int8_low",
]  # fmt: skip


class BlockParts(NamedTuple):
    """What blocks hold: codes [*, blocks, …, group] in i8, and for each group a scale in f32.

    Groups of some formats also have a number that is added (`low`), or one that is subtracted (`below`).
    """

    codes: Value
    scale: Value
    low: Value | None = None
    below: Value | None = None
    steps: Value | None = None
    """Integers [*, groups] that the block's first f16 is multiplied by, where a scale is such a product."""
    low_steps: Value | None = None
    """The same of what is subtracted, and the block's second f16."""


@dataclass(frozen=True, slots=True)
class Format:
    """A block format."""

    elements: int
    """Of a block."""
    bytes: int
    """Of a block."""
    group: int
    """Codes that share a scale."""
    bits: int
    """Of a code, less its zero point."""
    zero: int
    """What makes the smallest code 0."""
    scales: DType
    """The narrowest type that holds scales and lows without rounding."""
    parts: Callable[[Value], BlockParts]
    """The parts of blocks [*, blocks, bytes]."""
    halves: tuple[int, ...] = ()
    """Where a block has its f16, of scales and then of lows, if all other bytes are the bits of integers."""

    @property
    def levels(self) -> int:
        """Axes of the codes that become one."""
        return 2 if self.group == self.elements else 3


def _bytes(block: Value, start: int, stop: int) -> Value:
    return ops.slice_(block, axis=-1, start=start, stop=stop)


def _u16(block: Value, start: int) -> Value:
    low, high = (ops.cast(_bytes(block, at, at + 1), dtype=u16) for at in (start, start + 1))
    return ops.bit_or(low, ops.shift_left(high, 8))


def _half(block: Value, start: int) -> Value:
    """The f16 in two bytes, one for each block."""
    return ops.cast(ops.bitcast(_u16(block, start), source="u16", target="f16"), dtype=f32)


def _float(block: Value, start: int) -> Value:
    """The f32 in four bytes, one for each block."""
    parts = [ops.cast(_bytes(block, start + i, start + i + 1), dtype=u32) for i in range(4)]
    bits = parts[0]
    for i, part in enumerate(parts[1:], 1):
        bits = ops.bit_or(bits, ops.shift_left(part, 8 * i))
    return ops.bitcast(bits, source="u32", target="f32")


def _signed(x: Value) -> Value:
    return ops.bitcast(x, source="u8", target="i8")


def _spread(x: Value, shifts: Sequence[int], mask: int) -> Value:
    """Bits at several places of every byte, [*, n] as [*, places, n]."""
    moved = [x if at == 0 else ops.shift_right(x, at) for at in shifts]
    # A new axis before the masks would be another graph for a single block, where it has nothing in front of it.
    return ops.concat(*[ops.unsqueeze(ops.bit_and(m, mask), axes=(-2,)) for m in moved], axis=-2)


def _flat_bits(x: Value, shifts: Sequence[int], mask: int, run: int | None = None) -> Value:
    """The same of one run of bytes after the other, [*, n] as [*, places * n]."""
    if run is None:
        return ops.merge(_spread(x, shifts, mask), axis=-1)
    return ops.merge(_spread(ops.split(x, axis=-1, size=run), shifts, mask), axis=-1, count=3)


def _nibbles(x: Value) -> Value:
    """The low halves of all bytes, then the high ones."""
    return _flat_bits(x, (0, 4), 15)


def _single_bits(x: Value) -> Value:
    """The bits of four bytes, from the first to the last."""
    wide = ops.unsqueeze(x, axes=(-1,))
    moved = [ops.bit_and(wide if at == 0 else ops.shift_right(wide, at), 1) for at in range(8)]
    return ops.merge(ops.concat(*moved, axis=-1), axis=-1)


def _grouped(codes: Value, group: int) -> Value:
    return ops.split(codes, axis=-1, size=group)


def _for_groups(x: Value) -> Value:
    """Numbers [*, groups] against codes [*, groups, group]."""
    return ops.unsqueeze(x, axes=(-1,))


def _floats(x: Value) -> Value:
    return ops.cast(x, dtype=f32)


def _above(codes: Value, zero: int) -> Value:
    return ops.sub(_signed(codes), zero)


def _looked_up(nibbles: Value, table: Sequence[int]) -> Value:
    return ops.gather(leaf.constant(np.asarray(table, np.int8), i8), nibbles, axis=0)


def _with_fifth(block: Value, high: int, low: int) -> Value:
    """Four bits from nibbles and the fifth from four bytes."""
    fifth = ops.shift_left(_single_bits(_bytes(block, high, high + 4)), 4)
    return ops.bit_or(_nibbles(_bytes(block, low, low + 16)), fifth)


def _q8_0(block: Value) -> BlockParts:
    return BlockParts(_signed(_bytes(block, 2, 34)), _half(block, 0))


def _q4_0(block: Value) -> BlockParts:
    return BlockParts(_above(_nibbles(_bytes(block, 2, 18)), 8), _half(block, 0))


def _q4_1(block: Value) -> BlockParts:
    return BlockParts(_signed(_nibbles(_bytes(block, 4, 20))), _half(block, 0), _half(block, 2))


def _q5_0(block: Value) -> BlockParts:
    return BlockParts(_above(_with_fifth(block, 2, 6), 16), _half(block, 0))


def _q5_1(block: Value) -> BlockParts:
    return BlockParts(_signed(_with_fifth(block, 4, 8)), _half(block, 0), _half(block, 2))


def _scaled(block: Value, at: int, scales: Value) -> Value:
    """A scale for each group: the block's own f16 times integers."""
    return _for_groups(_half(block, at) * _floats(scales))


def _six_bit_pairs(block: Value) -> tuple[Value, Value]:
    """Eight scales and eight lows of six bits each, in twelve bytes from the fifth on."""
    d, m, both = (_bytes(block, at, at + 4) for at in (4, 8, 12))
    scales = ops.bit_or(ops.bit_and(both, 15), ops.bit_and(ops.shift_right(d, 2), 48))
    lows = ops.bit_or(ops.shift_right(both, 4), ops.bit_and(ops.shift_right(m, 2), 48))
    return (
        ops.concat(ops.bit_and(d, 63), scales, axis=-1),
        ops.concat(ops.bit_and(m, 63), lows, axis=-1),
    )


def _of_pairs(block: Value, codes: Value) -> BlockParts:
    scales, lows = _six_bit_pairs(block)
    scale, below = _scaled(block, 0, scales), _scaled(block, 2, lows)
    return BlockParts(_grouped(_signed(codes), 32), scale, None, below, scales, lows)


def _q4_k(block: Value) -> BlockParts:
    return _of_pairs(block, _flat_bits(_bytes(block, 16, 144), (0, 4), 15, 32))


def _q5_k(block: Value) -> BlockParts:
    fifth = ops.shift_left(_flat_bits(_bytes(block, 16, 48), range(8), 1), 4)
    return _of_pairs(block, ops.bit_or(_flat_bits(_bytes(block, 48, 176), (0, 4), 15, 32), fifth))


def _q6_k(block: Value) -> BlockParts:
    low = _flat_bits(_bytes(block, 0, 128), (0, 4), 15, 64)
    high = ops.shift_left(_flat_bits(_bytes(block, 128, 192), (0, 2, 4, 6), 3, 32), 4)
    codes, scales = _above(ops.bit_or(low, high), 32), _signed(_bytes(block, 192, 208))
    return BlockParts(_grouped(codes, 16), _scaled(block, 208, scales), steps=scales)


def _q2_k(block: Value) -> BlockParts:
    codes = _signed(_flat_bits(_bytes(block, 16, 80), (0, 2, 4, 6), 3, 32))
    both = _bytes(block, 0, 16)
    scales, lows = ops.bit_and(both, 15), ops.shift_right(both, 4)
    scale, below = _scaled(block, 80, scales), _scaled(block, 82, lows)
    return BlockParts(_grouped(codes, 16), scale, None, below, scales, lows)


def _q3_k(block: Value) -> BlockParts:
    low = _flat_bits(_bytes(block, 32, 96), (0, 2, 4, 6), 3, 32)
    third = ops.shift_left(_flat_bits(_bytes(block, 0, 32), range(8), 1), 2)
    codes = _above(ops.bit_or(low, third), 4)
    stored = ops.bit_or(
        _flat_bits(_bytes(block, 96, 104), (0, 4), 15),
        ops.shift_left(_flat_bits(_bytes(block, 104, 108), (0, 2, 4, 6), 3), 4),
    )
    scales = _above(stored, 32)
    return BlockParts(_grouped(codes, 16), _scaled(block, 108, scales), steps=scales)


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Floats of 4 bits, times 2."""


def _iq4_nl(block: Value) -> BlockParts:
    return BlockParts(_looked_up(_nibbles(_bytes(block, 2, 18)), _IQ4), _half(block, 0))


def _iq4_xs(block: Value) -> BlockParts:
    codes = _looked_up(_flat_bits(_bytes(block, 8, 136), (0, 4), 15, 16), _IQ4)
    pairs = _u16(block, 2)
    high = ops.concat(*[ops.bit_and(ops.shift_right(pairs, at), 3) for at in range(0, 16, 2)], axis=-1)
    low = _pairs(_bytes(block, 4, 8))
    scales = ops.bit_or(ops.cast(low, dtype=u16), ops.shift_left(high, 4))
    steps = _above(ops.cast(scales, dtype=u8), 32)
    return BlockParts(_grouped(codes, 32), _scaled(block, 0, steps), steps=steps)


def _mxfp4(block: Value) -> BlockParts:
    exponent = ops.cast(_bytes(block, 0, 1), dtype=u32)
    # The exponents 0 and 1 are denormals once halved.
    small = ops.shift_left(leaf.constant(np.asarray(0x00200000), u32), exponent)
    normal = ops.shift_left(exponent - leaf.constant(np.asarray(1), u32), 23)
    bits = ops.where(ops.less(exponent, leaf.constant(np.asarray(2), u32)), small, normal)
    scale = ops.bitcast(bits, source="u32", target="f32")
    return BlockParts(_looked_up(_nibbles(_bytes(block, 1, 17)), _FP4), scale)


def _pairs(x: Value) -> Value:
    """The low and the high half of the first byte, then of the next."""
    wide = ops.unsqueeze(x, axes=(-1,))
    return ops.merge(ops.concat(ops.bit_and(wide, 15), ops.shift_right(wide, 4), axis=-1), axis=-1)


def _int4(block: Value) -> BlockParts:
    return BlockParts(_above(_pairs(_bytes(block, 4, 20)), 8), _float(block, 0))


def _int4_low(block: Value) -> BlockParts:
    return BlockParts(_signed(_pairs(_bytes(block, 8, 24))), _float(block, 0), _float(block, 4))


def _int8_low(block: Value) -> BlockParts:
    return BlockParts(_signed(ops.bit_xor(_bytes(block, 8, 40), 128)), _float(block, 0), _float(block, 4))


FORMATS: Mapping[str, Format] = {
    "q4_0": Format(32, 18, 32, 4, 8, f16, _q4_0, (0,)),
    "q4_1": Format(32, 20, 32, 4, 0, f16, _q4_1, (0, 2)),
    "q5_0": Format(32, 22, 32, 5, 16, f16, _q5_0, (0,)),
    "q5_1": Format(32, 24, 32, 5, 0, f16, _q5_1, (0, 2)),
    "q8_0": Format(32, 34, 32, 8, 128, f16, _q8_0, (0,)),
    "q2_k": Format(256, 84, 16, 2, 0, f32, _q2_k, (80, 82)),
    "q3_k": Format(256, 110, 16, 3, 4, f32, _q3_k, (108,)),
    "q4_k": Format(256, 144, 32, 4, 0, f32, _q4_k, (0, 2)),
    "q5_k": Format(256, 176, 32, 5, 0, f32, _q5_k, (0, 2)),
    "q6_k": Format(256, 210, 16, 6, 32, f32, _q6_k, (208,)),
    "iq4_nl": Format(32, 18, 32, 8, 128, f16, _iq4_nl),
    "iq4_xs": Format(256, 136, 32, 8, 128, f32, _iq4_xs),
    "mxfp4": Format(32, 17, 32, 5, 16, f32, _mxfp4),
    "int4": Format(32, 20, 32, 4, 8, f32, _int4),
    "int4_low": Format(32, 24, 32, 4, 0, f32, _int4_low),
    "int8_low": Format(32, 40, 32, 8, 128, f32, _int8_low),
}
"""Every format, by name."""

__all__ = ["FORMATS", "BlockFormat", "BlockParts", "Format"]

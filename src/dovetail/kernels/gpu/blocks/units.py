"""Blocks of 256 elements as units of 32: what lanes that share a column have one each of.

A unit has the codes of 32 neighbours as planes of bits and, of each group of 16 or 32, an integer that the f16 of its
block is multiplied by, and perhaps another one that makes what is subtracted. Eight units share these f16. All formats
whose scales are such products become units, with the same numbers. Formats of products that are alike but for these,
such as those of layers of one model, become the same units, with as many bits as all of them need: then they have the
same kernel. Units are declared in primitives, as the formats of files are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import cast

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, i8, u16
from dovetail.ir.literal import Array, Literal
from dovetail.ir.value import Value
from dovetail.kernels.gpu.blocks.elements import traced
from dovetail.kernels.problems.blocks import BlockProduct, formats_alike, formats_of
from dovetail.kernels.spec import TensorLocations
from dovetail.library.block_formats import FORMATS, BlockParts, Format
from dovetail.ops.primitive import Primitive

__all__ = ["BLOCK", "ELEMENTS", "TOGETHER", "Units", "has_known_blocks", "is_nested", "units_of"]

_WORD = 32
_TRIED = 32
"""Random blocks that must be as the function has them."""


@dataclass(frozen=True, slots=True)
class _Term:
    """Bits of a word that are bits of another one."""

    source: int
    shift: int
    """Places to the left."""
    mask: int


@dataclass(frozen=True, slots=True)
class BitMoves:
    """The words of a result."""

    words: Sequence[tuple[int, Sequence[_Term]]]
    """What each one is for a block of zeros, and the bits that change it."""

    @staticmethod
    def of(slow: Callable[[Array], Array], size: int) -> BitMoves | None:
        """Return how a function moves bits of blocks [blocks, size] of bytes; None where it does more than that."""
        bits = np.arange(8 * size)
        alone = np.zeros((1 + len(bits), size), np.uint8)
        alone[1 + bits, bits // 8] = 1 << (bits % 8)
        none, *each = np.unpackbits(slow(alone), axis=-1, bitorder="little")
        changed: dict[int, dict[tuple[int, int], int]] = {}
        for source, changed_bits in enumerate(each):
            for target in np.flatnonzero(changed_bits != none).tolist():
                key = source // _WORD, target % _WORD - source % _WORD
                masks = changed.setdefault(target // _WORD, {})
                masks[key] = masks.get(key, 0) | 1 << target % _WORD
        starts = np.packbits(none, bitorder="little").view(np.uint32).tolist()
        moves = BitMoves(
            [
                (start, [_Term(word, shift, mask) for (word, shift), mask in changed.get(number, {}).items()])
                for number, start in enumerate(starts)
            ]
        )
        tried = np.random.default_rng(0).integers(0, 256, (_TRIED, size), dtype=np.uint8)
        return moves if np.array_equal(moves(tried), slow(tried)) else None

    def __call__(self, blocks: Array) -> Array:
        """The bytes of each result."""
        count, size = blocks.shape
        padded = np.zeros((count, -(-size // 4) * 4), np.uint8)
        padded[:, :size] = blocks
        source = np.ascontiguousarray(padded.view(np.uint32).T)
        words = np.empty((len(self.words), count), np.uint32)
        moved = np.empty(count, np.uint32)
        for target, (start, terms) in zip(words, self.words, strict=True):
            target[...] = start
            for term in terms:
                move = np.left_shift if term.shift >= 0 else np.right_shift
                move(source[term.source], np.uint32(abs(term.shift)), out=moved)
                np.bitwise_and(moved, np.uint32(term.mask), out=moved)
                np.bitwise_xor(target, moved, out=target)
        return np.ascontiguousarray(words.T).view(np.uint8)


ELEMENTS = 32
"""Of a unit."""
BLOCK = 256
"""Elements that share two f16."""
TOGETHER = BLOCK // ELEMENTS
"""Units that do."""
_HALF = 2
_SIGN = 128


def is_nested(name: str) -> bool:
    """Whether scales of a format are integers times an f16 of their block."""
    return FORMATS[name].elements == BLOCK and traced(FORMATS[name])[1].steps is not None


@dataclass(frozen=True, slots=True)
class Units:
    """How a unit is stored: planes of codes, integers of scales, integers of what is subtracted."""

    bits: int
    """Of a code, less its zero point."""
    zero: int
    group: int
    """Codes that share a scale."""
    has_lows: bool
    table: tuple[int, ...] = ()
    """What each code stands for, where a format has such numbers."""

    @staticmethod
    def of(names: Iterable[str]) -> Units | None:
        """The units that hold all of some formats; None where one of them has no integers of scales."""
        some = sorted(names)
        if not some or not all([is_nested(name) for name in some]):
            return None
        formats = [FORMATS[name] for name in some]
        numbers = _looked_up(traced(formats[0])[1].codes)
        if len(some) == 1 and numbers is not None:
            return Units(4, 0, formats[0].group, False, tuple(numbers.operands[0].attrs["value"].array.tolist()))
        zero = max([of.zero for of in formats])
        most = max([(1 << of.bits) - of.zero for of in formats])
        lows = any([traced(FORMATS[name])[1].low_steps is not None for name in some])
        return Units((zero + most - 1).bit_length(), zero, min([of.group for of in formats]), lows)

    @property
    def name(self) -> str:
        """Equal for equal units."""
        more = ", lows" if self.has_lows else f", {self.table}" if self.table else ""
        return f"units of {self.bits} bits, {self.zero}, {self.group}{more}"

    @property
    def groups(self) -> int:
        return ELEMENTS // self.group

    @property
    def planes(self) -> tuple[int, ...]:
        """The bits of each plane, from the lowest ones of a code to its highest."""
        return tuple([bits for bits in (8, 4, 2, 1) if self.bits & bits])

    @property
    def bytes(self) -> int:
        """Of a unit, less the f16 of its block."""
        return ELEMENTS * self.bits // 8 + self.groups * (2 if self.has_lows else 1)

    @property
    def half_bytes(self) -> int:
        """Of the f16 that units share."""
        return _HALF * (2 if self.has_lows else 1)

    @property
    def format(self) -> Format:
        """A unit followed by the f16 of its block, as a format."""
        nbytes = self.bytes + self.half_bytes
        return Format(ELEMENTS, nbytes, self.group, self.bits, self.zero, f32, self.parts)

    def parts(self, block: Value) -> BlockParts:
        """The parts of a unit in primitives."""
        codes: Value | None = None
        at = done = 0
        for bits in self.planes:
            plane = _taken(block, at, 4 * bits)
            # A plane has its lowest bits first: neighbours are in neighbouring bytes.
            every = [plane if by == 0 else ops.shift_right(plane, by) for by in range(0, 8, bits)]
            digits = ops.concat(*[ops.bit_and(x, (1 << bits) - 1) for x in every], axis=-1) if bits < 8 else plane
            codes = digits if codes is None else ops.bit_or(codes, ops.shift_left(digits, done))
            at, done = at + 4 * bits, done + bits
        assert codes is not None, "codes have bits"
        if self.table:
            codes = ops.gather(leaf.constant(np.asarray(self.table, np.int8), i8), codes, axis=0)
        elif self.zero == _SIGN:
            codes = ops.bitcast(ops.bit_xor(codes, _SIGN), source="u8", target="i8")
        else:
            codes = ops.bitcast(codes, source="u8", target="i8")
            codes = ops.sub(codes, self.zero) if self.zero else codes
        steps = ops.bitcast(_taken(block, at, self.groups), source="u8", target="i8")
        scale = ops.mul(_half(block, self.bytes), ops.cast(steps, dtype=f32))
        below: Value | None = None
        if self.has_lows:
            lows = ops.cast(_taken(block, at + self.groups, self.groups), dtype=f32)
            below = ops.mul(_half(block, self.bytes + _HALF), lows)
        if self.groups == 1:
            return BlockParts(codes, scale, None, below)
        below = None if below is None else ops.unsqueeze(below, axes=(-1,))
        return BlockParts(ops.split(codes, axis=-1, size=self.group), ops.unsqueeze(scale, axes=(-1,)), None, below)

    def split(self, rows: Array, depth: int) -> tuple[Array, Array, Array]:
        """Rows of blocks of any of the formats: codes [rows, units, words], integers of scales and lows [rows, units,
        bytes], and the f16 [rows, blocks, bytes] that eight units share."""
        count = depth // BLOCK
        # Blocks of different formats have different sizes.
        (name,) = [n for n in FORMATS if is_nested(n) and FORMATS[n].bytes * count == rows.shape[-1]]
        of, blocks = FORMATS[name], np.ascontiguousarray(rows).reshape(len(rows) * count, -1)
        moves = _moves(self, name)
        bytes_of_units = self.spelled(name, blocks) if moves is None else moves(blocks)
        ends = TOGETHER * ELEMENTS * self.bits // 8
        codes = np.ascontiguousarray(bytes_of_units[:, :ends]).view(np.uint32)
        halves = np.zeros((len(blocks), self.half_bytes), np.uint8)
        # Formats without lows subtract 0 times 0.
        for number, start in enumerate((of.halves or (0,))[: self.half_bytes // _HALF]):
            halves[:, _HALF * number : _HALF * (number + 1)] = blocks[:, start : start + _HALF]
        units = len(rows), count * TOGETHER, -1
        return codes.reshape(units), bytes_of_units[:, ends:].reshape(units), halves.reshape(len(rows), count, -1)

    def spelled(self, name: str, blocks: Array) -> Array:
        """The codes of all units of each block, and then their integers, from what the format says: one by one."""
        of = FORMATS[name]
        codes, steps, lows = _spelled(name, blocks, numbers=not self.table)
        planes = np.empty((len(blocks) * TOGETHER, 4 * self.bits), np.uint8)
        self._fill_planes(planes, codes.reshape(-1, ELEMENTS).view(np.uint8) + np.uint8(self.zero))
        integers = np.zeros((len(blocks), TOGETHER, self.bytes - 4 * self.bits), np.uint8)
        for number, some in enumerate((steps, lows)[: 2 if self.has_lows else 1]):
            if some is not None:
                each = np.repeat(some.view(np.uint8), of.group // self.group, axis=-1)
                at = slice(number * self.groups, (number + 1) * self.groups)
                integers[:, :, at] = each.reshape(len(blocks), TOGETHER, -1)
        return np.concatenate([planes.reshape(len(blocks), -1), integers.reshape(len(blocks), -1)], axis=-1)

    def _fill_planes(self, units: Array, codes: Array) -> None:
        """Write codes without a sign, [units, 32]."""
        at = done = 0
        for bits in self.planes:
            width = 4 * bits
            plane = units[:, at : at + width]
            for number in range(8 // bits):
                some = codes[:, number * width : (number + 1) * width]
                some = (some >> np.uint8(done)) & np.uint8((1 << bits) - 1)
                if number:
                    plane |= some << np.uint8(bits * number)
                else:
                    plane[...] = some
            at, done = at + width, done + bits


@lru_cache(maxsize=4 * len(FORMATS))
def _moves(units: Units, name: str) -> BitMoves | None:
    """How the bits of a format's blocks become those of units; None where codes take another zero point than bits can
    show."""
    return BitMoves.of(lambda blocks: units.spelled(name, blocks), FORMATS[name].bytes)


def units_of(value: Value, locations: TensorLocations) -> Units | None:
    """What blocks of a step's weights become, the same in all steps that are alike; None where they stay blocks."""
    return Units.of(formats_alike(value, locations)) or Units.of(formats_of(value))


def _taken(block: Value, start: int, count: int) -> Value:
    return ops.slice_(block, axis=-1, start=start, stop=start + count)


def _half(block: Value, start: int) -> Value:
    """The f16 in two bytes."""
    low, high = (ops.cast(_taken(block, at, 1), dtype=u16) for at in (start, start + 1))
    bits = ops.bit_or(low, ops.shift_left(high, 8))
    return ops.cast(ops.bitcast(bits, source="u16", target="f16"), dtype=f32)


def _looked_up(codes: Value) -> Value | None:
    """The look-up of numbers that codes stand for; None where codes are the numbers."""
    while codes.op is ops.split:
        (codes,) = codes.operands
    return codes if codes.op is ops.gather else None


def _spelled(name: str, blocks: Array, *, numbers: bool) -> tuple[Array, Array, Array | None]:
    """Codes, or the numbers that they stand for, and the integers of scales and lows of blocks [blocks, bytes]."""
    block, parts = traced(FORMATS[name])
    known: dict[Value, Array] = {block: blocks}

    def computed(value: Value) -> Array:
        if value not in known:
            if value.op is leaf.CONST:
                known[value] = cast(Literal, value.attrs["value"]).array
            else:
                assert isinstance(value.op, Primitive), "formats are spelled out in primitives"
                known[value] = cast(Array, value.op.compute(*map(computed, value.operands), **value.attrs))
        return known[value]

    assert parts.steps is not None, "units are made of such formats"
    lows = None if parts.low_steps is None else computed(parts.low_steps)
    table = None if numbers else _looked_up(parts.codes)
    codes = computed(parts.codes if table is None else table.operands[1])
    return np.ascontiguousarray(codes), np.ascontiguousarray(computed(parts.steps)), lows


def has_known_blocks(of: BlockProduct) -> bool:
    """Whether kernels read blocks: all columns are known, and nothing else of the step reads the floats."""
    contraction = of.contraction
    others = {contraction.operand(v) for v in (contraction.left, *contraction.operands)}
    columns = [part.shape[-2] for parts in of.blocks for part in parts]
    return (
        contraction.left.dtype is f32
        and (len(of.names) == 1 or Units.of(of.names) is not None)
        and not others & {contraction.operand(right) for right in contraction.rights}
        and all(
            [
                isinstance(size, int)
                for size in (*columns, contraction.result.shape[-1], contraction.rights[0].shape[-2])
            ]
        )
    )

"""Weights in blocks as kernels of GPUs read them: words of neighbouring columns are neighbours, packed at bind time.

A block is whole 32-bit words and, in some formats, one or two bytes more. Packed, all bytes of the file are there and
no others; blocks of 256 elements become units of 32, and the six bits of a scale a byte. The lanes of a warp have a
column each, so that what they read at once is one piece of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, u8, u16, u32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.gpu.blocks.elements import BlockElement, BlockReader
from dovetail.kernels.gpu.blocks.units import TOGETHER, Units
from dovetail.kernels.gpu.gemm.fragments import divided
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Call, Expr, Extent, Load, Name, Number, Set, Tensor
from dovetail.library.block_formats import FORMATS, BlockParts, Format

__all__ = ["SPREAD", "BlockFactor", "NamedBlock", "PackedBlocks", "pieces", "spread", "with_spread"]

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
    at, packed = slice(SPREAD[name], SPREAD[name] + _BYTES), blocks.copy()
    bits = np.unpackbits(blocks[..., at], axis=-1, bitorder="little").reshape(*blocks.shape[:-1], 8, _BYTES)
    packed[..., at] = np.packbits(bits.swapaxes(-1, -2), axis=-1, bitorder="little")[..., 0]
    return packed


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


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """[blocks, vectors, columns, words of a vector], then [blocks, columns] of what is no whole word, and then what
    units share, for each eight of them."""

    name: str
    """Of the format, where blocks are those of the file."""
    units: Units | None = None
    """What blocks are made into; None where they stay what they are."""
    depth: int = 0
    """Elements of a column, where it is made into units: different formats have different bytes."""

    @property
    def format(self) -> Format:
        return with_spread(self.name) if self.units is None else self.units.format

    @property
    def bytes(self) -> int:
        """Of a block, less what several share."""
        return self.format.bytes if self.units is None else self.units.bytes

    @property
    def words(self) -> int:
        """Of a block."""
        return self.bytes // u32.itemsize

    @property
    def vector(self) -> int:
        """Words of a column that are together: a thread loads at most 16 bytes at once."""
        return next(n for n in (4, 2, 1) if self.words % n == 0)

    @property
    def rest(self) -> DType | None:
        """What is no whole word; None where there is nothing."""
        return {0: None, 1: u8, 2: u16}[self.bytes % u32.itemsize]

    @property
    def rest_at(self) -> int:
        """Where it is in a block: at the start, unless scales are at the end."""
        is_last = self.units is not None or (bool(self.format.halves) and self.format.halves[0] > 0)
        return self.bytes - self.bytes % u32.itemsize if is_last else 0

    @property
    def words_at(self) -> int:
        """Where words start in a block."""
        return 0 if self.rest is None or self.rest_at else self.rest.itemsize

    @property
    def shared(self) -> DType | None:
        """What eight units share; None where blocks have all that is theirs."""
        return None if self.units is None else {2: u16, 4: u32}[self.units.half_bytes]

    @property
    def layout(self) -> str:
        return f"{self.name if self.units is None else self.units.name} by columns"

    def nbytes(self, columns: int, count: int) -> int:
        """Of some columns with `count` blocks each."""
        shared = 0 if self.shared is None else count // TOGETHER * self.shared.itemsize
        return columns * (count * self.bytes + shared)

    def count(self, rows: Array) -> int:
        """Blocks of a row."""
        return rows.shape[-1] // self.bytes if self.units is None else self.depth // self.format.elements

    def split(self, rows: Array) -> list[Array]:
        """Rows of blocks as vectors, what is no whole word, and what units share: [columns, blocks, …] of each."""
        if self.units is None or self.shared is None:
            blocks, size = spread(self.name, rows.reshape(len(rows), -1, self.bytes)), self.words * u32.itemsize
            vectors = [_viewed(blocks, self.words_at, size, VECTORS[self.vector])]
            return (
                vectors
                if self.rest is None
                else [*vectors, _viewed(blocks, self.rest_at, self.rest.itemsize, self.rest.numpy)]
            )
        words, integers, shared = self.units.split(rows, self.depth)
        if self.rest is None:
            words, integers = np.concatenate([words, integers.view(np.uint32)], axis=-1), None
        vectors = [words.view(VECTORS[self.vector])]
        rest = [] if self.rest is None or integers is None else [integers.view(self.rest.numpy)]
        return [*vectors, *rest, shared.view(self.shared.numpy)]

    def __call__(self, *parts: Array) -> Array:
        """From blocks [columns, bytes] of some columns after the other."""
        columns, count = sum([len(part) for part in parts]), self.count(parts[0])
        packed = np.empty(self.nbytes(columns, count), np.uint8)
        for first, some in pieces(parts):
            at = 0
            for source in self.split(some):
                size = columns * source.shape[1] * source.shape[2] * source.itemsize
                target = packed[at : at + size].view(source.dtype).reshape(*source.shape[1:], columns)
                target[:, :, first : first + len(some)] = source.transpose(1, 2, 0)
                at += size
        return packed


VECTORS = {1: np.dtype("u4"), 2: np.dtype("u8"), 4: np.dtype("c16")}
"""What NumPy moves as fast as it can, by the words of a vector."""
_PIECE = 1 << 19
"""Bytes of a matrix that are moved together, about: they fit the caches of the host."""


def pieces(parts: Iterable[Array], columns: int = 1) -> Iterator[tuple[int, Array]]:
    """Some rows of matrices at a time, as many as are multiples of a number, and that of the first of them in all."""
    start = 0
    for part in parts:
        most = max(1, _PIECE // part.shape[-1] // columns) * columns
        for first in range(0, len(part), most):
            yield start + first, part[first : first + most]
        start += len(part)


def _viewed(blocks: Array, start: int, size: int, kind: np.dtype) -> Array:
    """Some bytes of each block as numbers."""
    return np.ascontiguousarray(blocks[:, :, start : start + size]).view(kind)


@dataclass(frozen=True, slots=True)
class BlockFactor:
    """A right factor in packed blocks: some columns of a matrix, from one of them on."""

    pointer: str
    pack: PackedBlocks
    count: int
    """Blocks of a column."""
    whole: int
    """Columns of the matrix."""
    first: int
    columns: Size

    def words(self, block: Expr, column: Expr, used: Iterable[int], prefix: str) -> list[Set]:
        """The words of a block that are used, under names; the last ones are what is no whole word, and what units
        share."""
        pack, item = self.pack, u32.itemsize
        line = pack.vector * item
        strides = (pack.words * self.whole * item, self.whole * line, line, item)
        words = Tensor(self.pointer, u32, strides, self.first * line)
        statements: list[Set] = []
        for number in sorted(used):
            if number < pack.words:
                vector, at = divmod(number, pack.vector)
                value: Expr = Load(words, (block, Extent(vector), column, Extent(at)))
            else:
                is_rest = number == pack.words
                kind, at = (pack.rest, block) if is_rest else (pack.shared, divided(block, TOGETHER))
                assert kind is not None, "it is used"
                size = kind.itemsize
                after = self.count * self.whole * (pack.words * item if is_rest else pack.bytes)
                rest = Tensor(self.pointer, kind, (self.whole * size, size), after + self.first * size)
                value = cast_to(Load(rest, (at, column)), u32)
            statements.append(Set(f"{prefix}{number}", value))
        return statements


class NamedBlock:
    """The elements of a block whose words have names, and which words they use."""

    def __init__(self, pack: PackedBlocks, prefix: str) -> None:
        self.pack, self.prefix = pack, prefix
        self.used: set[int] = set()
        self._reader = BlockReader(pack.format, self._byte)

    def element(self, number: int) -> BlockElement:
        return self._reader.element(number)

    def _byte(self, number: int) -> Expr:
        pack = self.pack
        at = number - pack.words_at
        word, byte = divmod(at, u32.itemsize)
        if pack.rest is not None and pack.rest_at <= number < pack.rest_at + pack.rest.itemsize:
            word, byte = pack.words, number - pack.rest_at
        if number >= pack.bytes:
            word, byte = pack.words + 1, number - pack.bytes
        self.used.add(word)
        bits: Expr = Name(f"{self.prefix}{word}", u32)
        if byte:
            bits = Call("shift_right", (bits, Number(8 * byte, u32)), u32)
        return Call("bit_and", (bits, Number(255, u32)), u32)

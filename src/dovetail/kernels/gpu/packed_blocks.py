"""Weights in blocks as kernels of GPUs read them: words of neighbouring columns are neighbours, packed at bind time.

A block is whole 32-bit words and, in some formats, one or two bytes more. Packed, all bytes of the file are there and
no others. The lanes of a warp have a column each, so that what they read at once is one piece of memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, u8, u16, u32
from dovetail.ir.literal import Array
from dovetail.kernels.gpu.block_elements import BlockElement, BlockReader
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Call, Expr, Extent, Load, Name, Number, Set, Tensor
from dovetail.library.block_formats import FORMATS, Format


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """[blocks, vectors, columns, words of a vector], and then [blocks, columns] of what is no whole word."""

    name: str
    """Of the format."""

    @property
    def format(self) -> Format:
        return FORMATS[self.name]

    @property
    def words(self) -> int:
        """Of a block."""
        return self.format.bytes // u32.itemsize

    @property
    def vector(self) -> int:
        """Words of a column that are together: a thread loads at most 16 bytes at once."""
        return next(n for n in (4, 2, 1) if self.words % n == 0)

    @property
    def rest(self) -> DType | None:
        """What is no whole word; None where there is nothing."""
        return {0: None, 1: u8, 2: u16}[self.format.bytes % u32.itemsize]

    @property
    def rest_at(self) -> int:
        """Where it is in a block: at the start, unless scales are at the end."""
        is_last = bool(self.format.halves) and self.format.halves[0] > 0
        return self.format.bytes - self.format.bytes % u32.itemsize if is_last else 0

    @property
    def words_at(self) -> int:
        """Where words start in a block."""
        return 0 if self.rest is None or self.rest_at else self.rest.itemsize

    @property
    def layout(self) -> str:
        return f"{self.name} by columns"

    def __call__(self, *parts: Array) -> Array:
        """From blocks [columns, bytes] of some columns after the other."""
        of, vector = self.format, self.vector
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        columns, count = len(rows), rows.shape[-1] // of.bytes
        blocks = rows.reshape(columns, count, of.bytes)
        size = self.words * u32.itemsize
        found = np.empty(rows.nbytes, np.uint8)
        words = blocks[:, :, self.words_at : self.words_at + size].view(VECTORS[vector])
        _moved(words, found[: count * columns * size].view(VECTORS[vector]).reshape(count, -1, columns))
        if self.rest is not None:
            kind = np.dtype(f"u{self.rest.itemsize}")
            rest = blocks[:, :, self.rest_at : self.rest_at + kind.itemsize].view(kind)
            _moved(rest, found[count * columns * size :].view(kind).reshape(count, -1, columns))
        return found


VECTORS = {1: np.dtype("u4"), 2: np.dtype("u8"), 4: np.dtype("c16")}
"""What NumPy moves as fast as it can, by the words of a vector."""
_LINES = 64
"""Columns that are moved together: what is read of them fits the caches of the host."""


def _moved(source: Array, target: Array) -> None:
    """[columns, blocks, vectors] as [blocks, vectors, columns]."""
    for first in range(0, len(source), _LINES):
        some = slice(first, first + _LINES)
        target[:, :, some] = source[some].transpose(1, 2, 0)


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
        """The words of a block that are used, under names; the last one is what is no whole word."""
        pack, item = self.pack, u32.itemsize
        line = pack.vector * item
        strides = (pack.words * self.whole * item, self.whole * line, line, item)
        words = Tensor(self.pointer, u32, strides, self.first * line)
        found: list[Set] = []
        for number in sorted(used):
            if number < pack.words:
                vector, at = divmod(number, pack.vector)
                value: Expr = Load(words, (block, Extent(vector), column, Extent(at)))
            else:
                assert pack.rest is not None, "it is used"
                size = pack.rest.itemsize
                after = self.count * pack.words * self.whole * item
                rest = Tensor(self.pointer, pack.rest, (self.whole * size, size), after + self.first * size)
                value = cast_to(Load(rest, (block, column)), u32)
            found.append(Set(f"{prefix}{number}", value))
        return found


class NamedBlock:
    """The elements of a block whose words have names, and which words they use."""

    def __init__(self, pack: PackedBlocks, prefix: str) -> None:
        self.pack, self.prefix = pack, prefix
        self.used: set[int] = set()
        self._reader = BlockReader(pack.name, self._byte)

    def element(self, number: int) -> BlockElement:
        return self._reader.element(number)

    def _byte(self, number: int) -> Expr:
        pack = self.pack
        at = number - pack.words_at
        word, byte = divmod(at, u32.itemsize)
        if pack.rest is not None and pack.rest_at <= number < pack.rest_at + pack.rest.itemsize:
            word, byte = pack.words, number - pack.rest_at
        self.used.add(word)
        found: Expr = Name(f"{self.prefix}{word}", u32)
        if byte:
            found = Call("shift_right", (found, Number(8 * byte, u32)), u32)
        return Call("bit_and", (found, Number(255, u32)), u32)


__all__ = ["VECTORS", "BlockFactor", "NamedBlock", "PackedBlocks"]

"""Blocks packed for products: panels of codes, four steps along k in each 32-bit lane, with their scales in front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import u8
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.library.block_formats import FORMATS, BlockParts, Format
from dovetail.targets.runtime.aligned import aligned
from dovetail.targets.runtime.interpreter import evaluate_values

_ROWS = 1024
"""Columns of the product that are spelled out at a time: what they take besides the result is a few megabytes."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a group of codes is stored for NR columns: scales, lows, then codes.

    A code takes a byte, or half of one: the low halves of a lane are four steps along k, the high halves the next four.
    """

    name: str
    """Of the format."""
    columns: int
    """NR."""
    is_signed: bool
    """Whether codes of a byte are stored with their sign."""

    @property
    def format(self) -> Format:
        return FORMATS[self.name]

    @property
    def is_narrow(self) -> bool:
        """Whether codes take half a byte."""
        return self.format.bits <= 4

    @property
    def zero(self) -> int:
        """What stored codes are above the codes."""
        return 0 if self.is_signed and not self.is_narrow else self.format.zero

    @property
    def has_low(self) -> bool:
        _, found = _traced(self.name)
        return found.low is not None or found.below is not None

    @property
    def scale_bytes(self) -> int:
        """Of all scales of a group, or all its lows."""
        return self.columns * self.format.scales.itemsize

    @property
    def head_bytes(self) -> int:
        """Of scales and lows of a group; codes follow."""
        return self.scale_bytes * (2 if self.has_low else 1)

    @property
    def group_bytes(self) -> int:
        codes = self.format.group * self.columns
        return self.head_bytes + (codes // 2 if self.is_narrow else codes)

    def panel_bytes(self, deep: int) -> int:
        """Bytes of NR columns of `deep` rows."""
        return deep // self.format.group * self.group_bytes


@dataclass(frozen=True, slots=True)
class BlockPanels:
    """Matrices [columns, bytes] of blocks as panels; matrices of one panel are side by side."""

    layout_of: BlockLayout
    streams: tuple[tuple[int, int], ...]
    """For each stream of columns the right operand that it is in, and its first column."""
    size: int
    """Columns of each stream."""
    counts: tuple[int, ...]
    """How many matrices make up each right operand."""

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        of = self.layout_of
        return f"blocks {of.name} {of.columns} {of.is_signed} {self.streams} {self.size} {self.counts}"

    def __call__(self, *given: Array) -> Array:
        """Blocks as [panel, group, bytes]."""
        of, left = self.layout_of, list(given)
        rights = [[left.pop(0) for _ in range(count)] for count in self.counts]
        deep = given[0].shape[1] // of.format.bytes * of.format.elements
        width = of.columns // len(self.streams)
        panels = -(-self.size // width)
        packed = aligned((panels, deep // of.format.group, of.group_bytes), np.uint8)
        for stream, (right, first) in enumerate(self.streams):
            for start in range(0, panels * width, _ROWS // width * width):
                stop = min(start + _ROWS // width * width, panels * width)
                rows = _rows(rights[right], first + start, first + min(stop, self.size), stop - start)
                self._fill(packed[start // width : stop // width], rows, stream, width)
        return packed

    def _fill(self, panels: Array, rows: Array, stream: int, width: int) -> None:
        """Write some rows of blocks into one stream of their panels."""
        of = self.layout_of
        groups, group = panels.shape[1], of.format.group
        codes, scale, low = spelled(of.name, rows)

        def column(x: Array) -> Array:
            """Numbers [columns, groups] as [panel, group, column]."""
            return x.reshape(-1, width, groups).transpose(0, 2, 1)

        kind = of.format.scales.numpy
        heads = panels[..., : of.head_bytes].view(kind).reshape(len(panels), groups, -1, of.columns)
        at = slice(stream * width, (stream + 1) * width)
        heads[:, :, 0, at] = column(scale.astype(kind))
        if low is not None:
            heads[:, :, 1, at] = column(low.astype(kind))
        stored = np.ascontiguousarray(codes).view(np.uint8)
        # Four steps along k are one word: bytes that wrap around are right, and halves of bytes stay in theirs.
        words = (stored + np.uint8(of.zero) if of.zero else stored).view(np.uint32)
        words = words.reshape(-1, width, groups, group // 4).transpose(0, 2, 3, 1)
        if of.is_narrow:
            words = words[:, :, 0::2] | (words[:, :, 1::2] << np.uint32(4))
        body = panels[..., of.head_bytes :].view(np.uint32).reshape(len(panels), groups, -1, of.columns)
        body[..., at] = words

    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether panels hold all of matrices of these shapes, in a format whose blocks can be made again."""
        left = [shape[0] for shape in shapes]
        wide = [sum([left.pop(0) for _ in range(count)]) for count in self.counts]
        firsts = [sorted({first for right, first in self.streams if right == i}) for i in range(len(wide))]
        return self.layout_of.name in _AGAIN and all(
            found == list(range(0, n, self.size)) and n == len(found) * self.size
            for n, found in zip(wide, firsts, strict=True)
        )

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """The matrices of blocks that panels were made of."""
        of, width = self.layout_of, self.layout_of.columns // len(self.streams)
        given, rights = list(shapes), list[Array]()
        for count in self.counts:
            some = [given.pop(0) for _ in range(count)]
            rights.append(np.empty((sum([rows for rows, _ in some]), some[0][1]), np.uint8))
        for stream, (right, first) in enumerate(self.streams):
            rows = _AGAIN[of.name](*self._taken(packed, stream, width)).reshape(-1, shapes[0][1])
            rights[right][first : first + self.size] = rows[: self.size]
        found: list[Array] = []
        for whole, count in zip(rights, self.counts, strict=True):
            sizes = [shapes[len(found) + i][0] for i in range(count)]
            found += np.split(whole, np.cumsum(sizes)[:-1])
        return tuple(found)

    def _taken(self, panels: Array, stream: int, width: int) -> tuple[Array, Array]:
        """Bytes of scales and lows, and codes without a sign, of each row and group of a stream."""
        of, groups, at = self.layout_of, panels.shape[1], slice(stream * width, (stream + 1) * width)
        size = of.format.scales.itemsize
        heads = panels[..., : of.head_bytes].reshape(len(panels), groups, -1, of.columns, size)[:, :, :, at]
        body = panels[..., of.head_bytes :].reshape(len(panels), groups, -1, of.columns, 4)[:, :, :, at]
        if of.is_narrow:
            body = np.stack([body & 15, body >> 4], axis=3).reshape(len(panels), groups, -1, width, 4)
        codes = body.transpose(0, 3, 1, 2, 4).reshape(len(panels) * width, groups, -1)
        return heads.transpose(0, 3, 1, 2, 4).reshape(len(panels) * width, groups, -1), codes + np.uint8(
            of.format.zero - of.zero
        )


def _bytes_again(heads: Array, codes: Array) -> Array:
    return np.concatenate([heads, codes], axis=-1)


def _signed_again(heads: Array, codes: Array) -> Array:
    return np.concatenate([heads, codes ^ 128], axis=-1)


def _pairs_again(heads: Array, codes: Array) -> Array:
    return np.concatenate([heads, codes[..., 0::2] | codes[..., 1::2] << 4], axis=-1)


def _halves_again(heads: Array, codes: Array) -> Array:
    return np.concatenate([heads, codes[..., :16] | codes[..., 16:] << 4], axis=-1)


_AGAIN: Mapping[str, Callable[[Array, Array], Array]] = {
    "int4": _pairs_again,
    "int4_low": _pairs_again,
    "int8_low": _bytes_again,
    "q8_0": _signed_again,
    "q4_1": _halves_again,
}
"""Blocks of scales and codes, for the formats of arrays that are made in memory; others are in mapped files."""


def spelled(name: str, rows: Array) -> tuple[Array, Array, Array | None]:
    """Codes [rows, k], and scales and lows [rows, groups], of rows of blocks."""
    blocks, parts = _traced(name)
    of = FORMATS[name]
    kept = [part for part in parts if part is not None]
    given = rows.reshape(-1, of.bytes)
    with np.errstate(all="ignore"):
        found = evaluate_values(kept, {blocks: given}, sizes={"blocks": len(given)})
    arrays = {part: array.reshape(len(rows), -1) for part, array in zip(kept, found, strict=True)}
    low = None if parts.low is None else arrays[parts.low]
    if parts.below is not None:
        low = -arrays[parts.below]
    return arrays[parts.codes], arrays[parts.scale], low


@lru_cache(maxsize=len(FORMATS))
def _traced(name: str) -> tuple[Value, BlockParts]:
    """The parts of a format, and the blocks that they are parts of."""
    blocks = leaf.input("blocks", u8["blocks", FORMATS[name].bytes])
    return blocks, FORMATS[name].parts(blocks)


def _rows(matrices: Sequence[Array], start: int, stop: int, count: int) -> Array:
    """Rows of matrices that are one below the other, and zeros up to a count."""
    found = np.zeros((count, matrices[0].shape[1]), np.uint8)
    first = 0
    for matrix in matrices:
        low, high = max(start, first), min(stop, first + len(matrix))
        if low < high:
            found[low - start : high - start] = matrix[low - first : high - first]
        first += len(matrix)
    return found


__all__ = ["BlockLayout", "BlockPanels", "spelled"]

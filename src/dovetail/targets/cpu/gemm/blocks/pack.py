"""Blocks packed for products: panels of words, four steps along k in each 32-bit lane, with their scales in front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, f16, f32
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS, Format
from dovetail.targets.cpu.gemm.blocks.words import (
    SIX_BITS,
    SPREAD,
    BlockWords,
    block_words,
    expanded_words,
    gathered,
    integer_bytes,
    nest,
    six_bits_apart,
    six_bits_whole,
    spread,
    traced,
    unnest,
)  # fmt: skip
from dovetail.targets.runtime.arrays.huge_pages import HUGE_PAGES
from dovetail.targets.runtime.arrays.page_advice import unload
from dovetail.targets.runtime.calls.interpreter import evaluate_values

_ROWS = 1024
"""Columns of the product that are spelled out at a time: what they take besides the result is a few megabytes."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a block is stored for NR columns: scales, lows, then words, each of all columns."""

    name: str
    """Of the format."""
    columns: int
    """NR."""
    is_signed: bool
    """Whether codes of a byte are stored with their sign."""
    is_expanded: bool = False
    """Whether groups of a block are blocks of their own, with codes in bytes and scales and lows in f32."""
    by_lane: bool = False
    """Whether products multiply by one lane of a register: lows that are integers of a block stay there when its groups
    are expanded, and codes of six bits are whole."""
    is_nested: bool = False
    """Whether bytes with two codes are multiplied as they are."""

    @property
    def format(self) -> Format:
        return FORMATS[self.name]

    @property
    def words(self) -> BlockWords:
        if self.is_expanded:
            return expanded_words(self.name)
        return block_words(self.name, is_whole=self.is_whole, is_nested=self.is_nested)

    @property
    def is_whole(self) -> bool:
        """Whether codes of six bits are stored whole."""
        return self.by_lane and self.name in SIX_BITS

    @property
    def order(self) -> str:
        """How packed words differ from those of the file."""
        return "nested" if self.is_nested else "whole" if self.is_whole else "as written"

    @property
    def read(self) -> BlockLayout:
        """Return the layout that GEMM kernels read: blocks of one group."""
        return self if self.groups == 1 else self.expanded

    @property
    def expanded(self) -> BlockLayout:
        """Return the layout to which blocks are expanded."""
        return replace(self, is_expanded=True)

    @property
    def is_narrow(self) -> bool:
        """Whether codes take less than a byte."""
        return 4 * self.words.count < self.block

    @property
    def zero(self) -> int:
        """Return by how much stored codes are above the codes."""
        return 0 if self.is_signed and not self.is_narrow and not self.is_expanded else self.format.zero

    @property
    def has_low(self) -> bool:
        if self.is_expanded and self.by_lane and block_words(self.name).lows:
            return False
        _, integers = traced(self.name)
        return integers.low is not None or integers.below is not None

    @property
    def block(self) -> int:
        """Codes of a packed block: a block of the format, or a group of it."""
        return self.format.elements if self.format.halves and not self.is_expanded else self.format.group

    @property
    def groups(self) -> int:
        """Of a packed block."""
        return self.block // self.format.group

    @property
    def scales(self) -> DType:
        """The type of stored scales and lows."""
        if self.is_expanded:
            return f32
        return f16 if self.format.halves else self.format.scales

    @property
    def scale_bytes(self) -> int:
        """Of all scales of a block, or all its lows."""
        return self.columns * self.scales.itemsize

    @property
    def head_bytes(self) -> int:
        """Of scales and lows of a block; words follow."""
        return self.scale_bytes * (2 if self.has_low else 1)

    @property
    def block_bytes(self) -> int:
        return self.head_bytes + 4 * self.words.count * self.columns

    @property
    def group_bytes(self) -> int:
        """Of a block of one group."""
        assert self.groups == 1, "kernels read such blocks"
        return self.block_bytes

    def panel_bytes(self, deep: int) -> int:
        """Bytes of NR columns of `deep` rows."""
        return deep // self.block * self.block_bytes


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
        return f"blocks {of.name} {of.columns} {of.is_signed} {of.order} {self.streams} {self.size} {self.counts}"

    def __call__(self, *weights: Array) -> Array:
        """Blocks as [panel, block, bytes]."""
        packed = HUGE_PAGES.array(self.room(weights[0].shape[1]), self.dtype)
        self.write(packed, *weights)
        return packed

    @property
    def dtype(self) -> type[np.uint8]:
        """Of packed panels."""
        return np.uint8

    def room(self, deep: int) -> tuple[int, ...]:
        """The shape of the panels of matrices with rows of this size."""
        of, width = self.layout_of, self.layout_of.columns // len(self.streams)
        steps = deep // of.format.bytes * of.format.elements
        return -(-self.size // width), steps // of.block, of.block_bytes

    def write(self, packed: Array, *weights: Array) -> None:
        """Write all panels."""
        of, left = self.layout_of, list(weights)
        rights = [[left.pop(0) for _ in range(count)] for count in self.counts]
        width = of.columns // len(self.streams)
        panels = len(packed)
        fill = self._fill_words if of.format.halves else self._fill_spelled
        for stream, (right, first) in enumerate(self.streams):
            for start in range(0, panels * width, _ROWS // width * width):
                stop = min(start + _ROWS // width * width, panels * width)
                rows = _rows(rights[right], first + start, first + min(stop, self.size), stop - start)
                fill(packed[start // width : stop // width], rows, stream, width)
                # Pages of a mapped file go as they are packed: the largest matrix would be in memory twice.
                unload(rows)

    def _fill_words(self, panels: Array, rows: Array, stream: int, width: int) -> None:
        """Write some rows of blocks into one stream of their panels: the words of a row become a lane of vectors."""
        of, at = self.layout_of, slice(stream * width, (stream + 1) * width)
        count, blocks = panels.shape[:2]
        stored = rows.reshape(count, width, blocks, of.format.bytes)
        for number, start in enumerate(of.format.halves):
            first = number * of.scale_bytes
            heads = panels[..., first : first + of.scale_bytes].view(np.uint16)
            heads[..., at] = _numbers(stored, np.uint16, start, 1)[..., 0].transpose(0, 2, 1)
        words = _numbers(stored, np.uint32, integer_bytes(of.name).start, of.words.count)
        if of.zero and not of.is_narrow:
            words = words ^ np.uint32(0x80808080)
        body = panels[..., of.head_bytes :].view(np.uint32).reshape(count, blocks, -1, of.columns)
        body[..., at] = words.transpose(0, 2, 3, 1)
        if of.is_whole:
            six_bits_whole(body[..., at])
        if of.is_nested:
            nest(of.name, body[..., at])
        if of.name in SPREAD:
            there = (SPREAD[of.name] - integer_bytes(of.name).start) // 4
            body[..., there, at] = spread(body[..., there, at])

    def _fill_spelled(self, panels: Array, rows: Array, stream: int, width: int) -> None:
        """The same of a format whose codes and scales are not stored as its blocks have them."""
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
        of = self.layout_of
        return (bool(of.format.halves) or of.name in _AGAIN) and all(
            columns == list(range(0, n, self.size)) and n == len(columns) * self.size
            for n, columns in zip(wide, firsts, strict=True)
        )

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """Return the matrices of blocks that were packed into panels."""
        width = self.layout_of.columns // len(self.streams)
        left, rights = list(shapes), list[Array]()
        for count in self.counts:
            some = [left.pop(0) for _ in range(count)]
            rights.append(np.empty((sum([rows for rows, _ in some]), some[0][1]), np.uint8))
        for stream, (right, first) in enumerate(self.streams):
            rows = self._blocks(packed, stream, width).reshape(-1, shapes[0][1])
            rights[right][first : first + self.size] = rows[: self.size]
        matrices: list[Array] = []
        for whole, count in zip(rights, self.counts, strict=True):
            sizes = [shapes[len(matrices) + i][0] for i in range(count)]
            matrices += np.split(whole, np.cumsum(sizes)[:-1])
        return tuple(matrices)

    def _blocks(self, panels: Array, stream: int, width: int) -> Array:
        """Rows of blocks of a stream."""
        of, at = self.layout_of, slice(stream * width, (stream + 1) * width)
        if not of.format.halves:
            return _AGAIN[of.name](*self._taken(panels, stream, width))
        count, blocks = panels.shape[:2]
        stored = np.empty((count, width, blocks, of.format.bytes), np.uint8)
        heads = panels[..., : of.head_bytes].reshape(count, blocks, -1, of.columns, 2)[:, :, :, at]
        for number, start in enumerate(of.format.halves):
            stored[..., start : start + 2] = heads[:, :, number].transpose(0, 2, 1, 3)
        body = panels[..., of.head_bytes :].reshape(count, blocks, -1, of.columns, 4)[:, :, :, at]
        if of.zero and not of.is_narrow:
            body = body ^ np.uint8(128)
        if of.is_whole:
            body = body.copy()
            six_bits_apart(body.view(np.uint32)[..., 0])
        if of.is_nested:
            body = body.copy()
            unnest(of.name, body.view(np.uint32)[..., 0])
        stored[..., integer_bytes(of.name)] = body.transpose(0, 3, 1, 2, 4).reshape(count, width, blocks, -1)
        if of.name in SPREAD:
            bits = stored[..., SPREAD[of.name] : SPREAD[of.name] + 4]
            bits[...] = gathered(bits)
        return stored

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


def _pairs_again(heads: Array, codes: Array) -> Array:
    return np.concatenate([heads, codes[..., 0::2] | codes[..., 1::2] << 4], axis=-1)


_AGAIN: Mapping[str, Callable[[Array, Array], Array]] = {
    "int4": _pairs_again,
    "int4_low": _pairs_again,
    "int8_low": _bytes_again,
}
"""Blocks of scales and codes, for the formats of arrays in memory; others are in mapped files."""


def _numbers(blocks: Array, kind: type[np.uint16] | type[np.uint32], start: int, count: int) -> Array:
    """Some numbers of each block from one of its bytes on, without a copy."""
    shape, strides = (*blocks.shape[:-1], count), (*blocks.strides[:-1], np.dtype(kind).itemsize)
    return np.ndarray(shape, kind, blocks, start, strides)


def spelled(name: str, rows: Array) -> tuple[Array, Array, Array | None]:
    """Codes [rows, k], and scales and lows [rows, groups], of rows of blocks."""
    blocks, parts = traced(name)
    of = FORMATS[name]
    kept = [part for part in parts[:4] if part is not None]
    stored = rows.reshape(-1, of.bytes)
    with np.errstate(all="ignore"):
        values = evaluate_values(kept, {blocks: stored}, sizes={"blocks": len(stored)})
    arrays = {part: array.reshape(len(rows), -1) for part, array in zip(kept, values, strict=True)}
    low = None if parts.low is None else arrays[parts.low]
    if parts.below is not None:
        low = -arrays[parts.below]
    return arrays[parts.codes], arrays[parts.scale], low


def _rows(matrices: Sequence[Array], start: int, stop: int, count: int) -> Array:
    """Rows of matrices that are one below the other, and zeros up to a count."""
    if len(matrices) == 1 and stop - start == count and matrices[0].flags.c_contiguous:
        return matrices[0][start:stop]
    joined = np.zeros((count, matrices[0].shape[1]), np.uint8)
    first = 0
    for matrix in matrices:
        low, high = max(start, first), min(stop, first + len(matrix))
        if low < high:
            joined[low - start : high - start] = matrix[low - first : high - first]
        first += len(matrix)
    return joined


__all__ = ["BlockLayout", "BlockPanels", "spelled"]

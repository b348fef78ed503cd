"""Tiles of matrices in shared memory.

A tile has rows of 16-byte chunks. Eight rows of one column of chunks are in different banks: the chunks of a row are
swizzled, that is permuted by the number of the row, or rows are padded.
"""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, i64
from dovetail.kernels.gpu.gemm.block_tile import CHUNK_BYTES, chunk_of
from dovetail.kernels.loops.ir import ZERO, Call, Expr, Extent, Tensor
from dovetail.kernels.matrix_instruction import LINE_BYTES


def divided(x: Expr, by: int) -> Expr:
    if isinstance(x, Extent) and isinstance(x.size, int):
        return Extent(x.size // by)
    return x if by == 1 else Call("div", (x, Extent(by)), i64)


def remainder(x: Expr, by: int) -> Expr:
    if isinstance(x, Extent) and isinstance(x.size, int):
        return Extent(x.size % by)
    return ZERO if by == 1 else Call("rem", (x, Extent(by)), i64)


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A tile of elements in shared memory: lines of chunks of 16 bytes, in panels, once for each stage."""

    name: str
    dtype: DType
    lines: int
    chunks: int
    stages: int
    offset: int = 0
    """Bytes from the start of the allocation."""

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return chunk_of(self.dtype)

    @property
    def count(self) -> int:
        """Elements of all stages."""
        return self.stages * self.lines * self.chunks * self.chunk

    @property
    def width(self) -> int:
        """Chunks of a line: a power of two. Further chunks are in panels of their own, each with all lines."""
        return min(LINE_BYTES // CHUNK_BYTES, self.chunks & -self.chunks)

    @property
    def panel_bytes(self) -> int:
        return self.lines * self.width * CHUNK_BYTES

    def place(self, stage: Expr, line: Expr, chunk: Expr, element: Expr = ZERO) -> tuple[Tensor, tuple[Expr, ...]]:
        """Where an element is."""
        item = self.dtype.itemsize
        panels = self.chunks // self.width
        line_bytes = self.width * CHUNK_BYTES
        strides = (panels * self.panel_bytes, self.panel_bytes, line_bytes, CHUNK_BYTES, item)
        panel, within = (ZERO, chunk) if panels == 1 else (divided(chunk, self.width), remainder(chunk, self.width))
        turned = Call("bit_xor", (within, remainder(line, self.width)), i64)
        tensor = Tensor(self.name, self.dtype, strides, self.offset, space="shared")
        return tensor, (stage, panel, line, turned, element)


@dataclass(frozen=True, slots=True)
class LineTile:
    """A tile of elements in shared memory whose lines are neighbouring bytes, so that one copy fills each.

    A chunk of padding after each line spreads the chunks of neighbouring lines over all banks.
    """

    name: str
    dtype: DType
    lines: int
    length: int
    """Elements of a line."""
    stages: int = 1
    """Times that there is room for all lines."""

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return chunk_of(self.dtype)

    @property
    def pitch(self) -> int:
        """Elements from one line to the next."""
        return self.length + self.chunk

    @property
    def count(self) -> int:
        return self.stages * self.lines * self.pitch

    def place(self, stage: Expr, line: Expr, chunk: Expr) -> tuple[Tensor, tuple[Expr, ...]]:
        """Where a chunk is."""
        item = self.dtype.itemsize
        strides = (self.lines * self.pitch * item, self.pitch * item, CHUNK_BYTES, item)
        return Tensor(self.name, self.dtype, strides, space="shared"), (stage, line, chunk, ZERO)


__all__ = ["LineTile", "SharedTile", "divided", "remainder"]

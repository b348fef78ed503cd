"""Weights of products with few rows as kernels of GPUs read them: packed when parameters are bound."""

from __future__ import annotations

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array

BLOCK = 128
"""Rows and columns that are transposed together: they fit the caches of the host."""


@dataclass(frozen=True, slots=True)
class Transposed:
    """[columns, k]: what a block with a few columns reads is one piece of memory."""

    padding: int = 0
    """Elements after each column: lines in shared memory have them too, so that one copy brings several."""

    @property
    def layout(self) -> str:
        return f"transposed, {self.padding} between columns" if self.padding else "transposed"

    def __call__(self, w: Array) -> Array:
        depth, width = w.shape[-2:]
        packed = np.zeros((width, depth + self.padding), w.dtype)
        # Bits are moved: NumPy is slow with dtypes that are not its own.
        bits = np.dtype(f"u{w.dtype.itemsize}")
        source, target = w.reshape(depth, width).view(bits), packed.view(bits)
        for first in range(0, depth, BLOCK):
            rows = slice(first, min(first + BLOCK, depth))
            for left in range(0, width, BLOCK):
                columns = slice(left, left + BLOCK)
                target[columns, rows] = source[rows, columns].T
        return packed


@dataclass(frozen=True, slots=True)
class Staged:
    """[blocks, stages, columns, k]: what a block reads at a time is one piece of memory."""

    columns: int
    """Of a block."""
    depth: int
    """Elements of k of a stage."""
    padding: int
    """Elements after each column."""

    @property
    def layout(self) -> str:
        return f"{self.columns} columns, {self.depth} of k at a time, {self.padding} between columns"

    @property
    def stage(self) -> int:
        """Elements of a stage."""
        return self.columns * (self.depth + self.padding)

    def __call__(self, w: Array) -> Array:
        by_column = Transposed()(w)
        width, depth = by_column.shape
        packed = np.zeros(
            (width // self.columns, depth // self.depth, self.columns, self.depth + self.padding), w.dtype
        )
        bits = np.dtype(f"u{w.dtype.itemsize}")
        parts = by_column.view(bits).reshape(width // self.columns, self.columns, depth // self.depth, self.depth)
        packed.view(bits)[..., : self.depth] = parts.transpose(0, 2, 1, 3)
        return packed


__all__ = ["Staged", "Transposed"]

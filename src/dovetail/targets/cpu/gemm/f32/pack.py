"""Panels: weights laid out once, in the order in which the register tile reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.aligned import aligned


@dataclass(frozen=True, slots=True)
class Panels:
    """Columns of one or more matrices side by side: a panel has as many of each, and zeros after the last."""

    columns: int
    """Of a panel."""
    streams: tuple[tuple[int, int], ...]
    """For each stream of columns the matrix that it is in, and its first column."""
    size: int
    """Columns of each stream."""
    turned: bool = False
    """Whether the matrices come with columns for rows."""

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"panels {self.columns} {self.streams} {self.size} {self.turned}"

    def __call__(self, *weights: Array) -> Array:
        """Matrices [*, k, n] as f32 [*, panel, k, column]."""
        matrices = [np.swapaxes(m, -1, -2) for m in weights] if self.turned else weights
        width = self.columns // len(self.streams)
        *batch, k, _ = matrices[0].shape
        whole, rest = divmod(self.size, width)
        packed = aligned((*batch, whole + (rest > 0), k, self.columns))
        for stream, (matrix, first) in enumerate(self.streams):
            part = matrices[matrix][..., first : first + self.size]
            target = packed[..., stream * width : (stream + 1) * width]
            split = part[..., : whole * width].reshape(*batch, k, whole, width)
            target[..., :whole, :, :] = np.moveaxis(split, -2, -3)
            if rest:
                target[..., whole, :, :rest] = part[..., whole * width :]
                target[..., whole, :, rest:] = 0.0
        return packed

    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether every column of matrices of these shapes is in one of the streams."""
        wide = [shape[-2 if self.turned else -1] for shape in shapes]
        firsts = [sorted({first for matrix, first in self.streams if matrix == i}) for i in range(len(shapes))]
        return self.size > 0 and all(
            n == len(columns) * self.size and columns == list(range(0, n, self.size))
            for n, columns in zip(wide, firsts, strict=True)
        )

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """The matrices that panels have."""
        width = self.columns // len(self.streams)
        weights = [np.empty(shape, np.float32) for shape in shapes]
        matrices = [np.swapaxes(m, -1, -2) for m in weights] if self.turned else weights
        for stream, (matrix, first) in enumerate(self.streams):
            part = np.moveaxis(packed[..., stream * width : (stream + 1) * width], -3, -2)
            rows = part.reshape(*part.shape[:-2], part.shape[-2] * width)
            matrices[matrix][..., first : first + self.size] = rows[..., : self.size]
        return tuple(weights)


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """A matrix with each column along k, filled up with zeros to whole vectors."""

    lanes: int
    turned: bool
    """Whether the matrix comes with columns for rows."""

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"columns {self.lanes} {self.turned}"

    def __call__(self, weights: Array) -> Array:
        """A matrix [k, n] as f32 [n, k]."""
        columns = weights if self.turned else weights.T
        count, deep = columns.shape
        packed = aligned((count, -(-deep // self.lanes) * self.lanes), np.float32)
        packed[:, :deep] = columns
        packed[:, deep:] = 0.0
        return packed

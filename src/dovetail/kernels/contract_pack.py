"""Panels: weights laid out once, in the order in which the register tile reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.ir.literal import Array

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Panels:
    """Columns of one or more matrices side by side: a panel has as many of each, and zeros behind the last."""

    columns: int
    """Of a panel."""
    streams: tuple[tuple[int, int], ...]
    """For each stream of columns the matrix that it lies in, and its first column."""
    size: int
    """Columns of each stream."""
    turned: bool = False
    """Whether the matrices come with columns for rows."""

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"panels {self.columns} {self.streams} {self.size} {self.turned}"

    def __call__(self, *given: Array) -> Array:
        """Matrices [*, k, n] as f32 [*, panel, k, column]."""
        matrices = [np.swapaxes(m, -1, -2) for m in given] if self.turned else given
        width = self.columns // len(self.streams)
        *batch, k, _ = matrices[0].shape
        whole, rest = divmod(self.size, width)
        packed = _aligned((*batch, whole + (rest > 0), k, self.columns))
        for stream, (matrix, first) in enumerate(self.streams):
            part = matrices[matrix][..., first : first + self.size]
            target = packed[..., stream * width : (stream + 1) * width]
            split = part[..., : whole * width].reshape(*batch, k, whole, width)
            target[..., :whole, :, :] = np.moveaxis(split, -2, -3)
            if rest:
                target[..., whole, :, :rest] = part[..., whole * width :]
                target[..., whole, :, rest:] = 0.0
        return packed


def _aligned(shape: tuple[int, ...]) -> Array:
    raw = np.empty(4 * int(np.prod(shape)) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : raw.size - ALIGNMENT + start].view(np.float32).reshape(shape)

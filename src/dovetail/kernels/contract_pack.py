"""Panels: weights laid out once, in the order in which the register tile reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.ir.literal import Array

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Panels:
    """Columns of one or more matrices side by side: a panel has as many of each, and zeros behind the last."""

    columns: int
    """Of a panel."""
    sources: tuple[tuple[int, int, int], ...]
    """For each stream of columns the matrix that it lies in, its first column and how many there are."""

    @property
    def width(self) -> int:
        """Columns of one stream in a panel."""
        return self.columns // len(self.sources)

    @property
    def layout(self) -> str:
        return f"panels of {self.columns} from {self.sources}"

    @property
    def pack(self) -> Callable[..., Array]:
        return lambda *matrices: pack(matrices, self)


def pack(matrices: Sequence[Array], panels: Panels) -> Array:
    """Matrices [*, k, n] as f32 [*, panel, k, column]."""
    width = panels.width
    *batch, k, _ = matrices[0].shape
    count = max(-(-size // width) for _, _, size in panels.sources)
    packed = _aligned((*batch, count, k, panels.columns))
    for stream, (matrix, first, size) in enumerate(panels.sources):
        part = matrices[matrix][..., first : first + size]
        target = packed[..., stream * width : (stream + 1) * width]
        whole = size // width
        if whole:
            split = part[..., : whole * width].reshape(*batch, k, whole, width)
            target[..., :whole, :, :] = np.moveaxis(split, -2, -3)
        if size % width:
            target[..., whole, :, : size % width] = part[..., whole * width :]
            target[..., whole, :, size % width :] = 0.0
        target[..., -(-size // width) :, :, :] = 0.0
    return packed


def _aligned(shape: tuple[int, ...]) -> Array:
    raw = np.empty(4 * int(np.prod(shape)) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : raw.size - ALIGNMENT + start].view(np.float32).reshape(shape)

"""Filters of convolutions as kernels of GPUs read them: packed when parameters are bound."""

from __future__ import annotations

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array


@dataclass(frozen=True, slots=True)
class FiltersByTap:
    """A row for each filter, in which the channels of a tap are neighbours."""

    groups: int
    is_transposed: bool = False
    """Whether filters come as a transposed convolution has them: [channels, filters of a group, *window]."""

    @property
    def layout(self) -> str:
        return f"filters_by_tap.transposed.{self.groups}" if self.is_transposed else "filters_by_tap"

    def __call__(self, w: Array) -> Array:
        if self.is_transposed:
            split = w.reshape((self.groups, w.shape[0] // self.groups, *w.shape[1:])).swapaxes(1, 2)
            w = split.reshape((split.shape[0] * split.shape[1], *split.shape[2:]))
        return np.ascontiguousarray(np.moveaxis(w, 1, -1)).reshape(w.shape[0], -1)


@dataclass(frozen=True, slots=True)
class FoldedFilters:
    """A row for each filter, for images whose strides are channels: taps of a row of the window are neighbours."""

    strides: tuple[int, ...]
    width: int
    """Channels of a folded pixel, with padding."""
    line: int
    """Rows of the window fill multiples of it."""

    @property
    def layout(self) -> str:
        return f"folded.{'x'.join(map(str, self.strides))}.{self.width}.{self.line}"

    def __call__(self, w: Array) -> Array:
        filters, channels, *window = w.shape
        rank, strides = len(window), self.strides
        taps = [-(-n // s) for n, s in zip(window, strides, strict=True)]
        whole = [(0, t * s - n) for t, s, n in zip(taps, strides, window, strict=True)]
        split = [n for t, s in zip(taps, strides, strict=True) for n in (t, s)]
        w = np.pad(w, ((0, 0), (0, 0), *whole)).reshape(filters, channels, *split)
        order = (0, *[2 + 2 * i for i in range(rank)], *[3 + 2 * i for i in range(rank)], 1)
        w = np.transpose(w, order).reshape(filters, *taps, -1)
        w = _padded(w, self.width).reshape(filters, *taps[:-1], -1)
        return np.ascontiguousarray(_padded(w, -(-w.shape[-1] // self.line) * self.line)).reshape(filters, -1)


def _padded(w: Array, size: int) -> Array:
    """The same with zeros at the end of the last axis."""
    return np.pad(w, (*[(0, 0)] * (w.ndim - 1), (0, size - w.shape[-1])))


@dataclass(frozen=True, slots=True)
class DepthwiseByTap:
    """[*window, channels]: the channels of a tap are neighbours."""

    layout: str = "depthwise_by_tap"

    def __call__(self, w: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(w[:, 0], 0, -1))


__all__ = ["DepthwiseByTap", "FiltersByTap", "FoldedFilters"]

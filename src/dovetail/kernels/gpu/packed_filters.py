"""Filters of convolutions as kernels of GPUs read them: packed when parameters are bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
class DepthwiseByTap:
    """[*window, channels]: the channels of a tap are neighbours."""

    layout: str = "depthwise_by_tap"

    def __call__(self, w: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(w[:, 0], 0, -1))


__all__ = ["DepthwiseByTap", "FiltersByTap"]

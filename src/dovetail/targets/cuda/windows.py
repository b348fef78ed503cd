"""Kernels for windows that slide over images: convolutions and pools."""

from __future__ import annotations

from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.convolve import offer_convolve
from dovetail.targets.cuda.images import is_convolved
from dovetail.targets.runtime.selection import Kind, Row

WINDOWS: tuple[Kind[GpuDevice | None], ...] = (
    Kind("convolution", is_convolved, lambda: (Row("convolve", offer_convolve),)),
)
"""The kinds of problem, and their kernels in the order of preference."""

__all__ = ["WINDOWS"]

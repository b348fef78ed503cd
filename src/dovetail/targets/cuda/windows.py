"""Kernels for windows that slide over images: convolutions and pools."""

from __future__ import annotations

from dovetail import ops
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.convolve import offer_copied, offer_fma, offer_gathered
from dovetail.kernels.gpu.convolve_folded import offer_folded
from dovetail.kernels.gpu.slide import offer_depthwise, offer_pool
from dovetail.targets.cuda.images import POOLS, is_convolved
from dovetail.targets.runtime.selection import Kind, Row

CONVOLUTIONS: tuple[Row[GpuDevice | None], ...] = (
    Row("depthwise", offer_depthwise),
    Row("convolve.copied", offer_copied),
    Row("convolve.folded", offer_folded),
    Row("convolve.gathered", offer_gathered),
    Row("convolve.fma", offer_fma),
)
WINDOWS: tuple[Kind[GpuDevice | None], ...] = (
    Kind("convolution", is_convolved, lambda: CONVOLUTIONS),
    Kind("pool", lambda v: v.op in (*POOLS, ops.max_pool_indices), lambda: (Row("pool", offer_pool),)),
)
"""The kinds of problem, and their kernels in the order of preference."""

__all__ = ["WINDOWS"]

"""Kernels for windows that slide over images: convolutions and pools."""

from __future__ import annotations

from dovetail import library
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.convolve import offer_convolve
from dovetail.kernels.problems.windows import CONVOLUTIONS
from dovetail.ops.region import anchor_of, region
from dovetail.targets.runtime.selection import Kind, Row

CONVOLVED = (*CONVOLUTIONS, library.conv_bias_act)


def is_convolved(value: Value) -> bool:
    """Whether it is a convolution, or a region around one."""
    anchor = anchor_of(value.attrs["body"]) if value.op is region else value
    return anchor is not None and anchor.op in CONVOLVED


WINDOWS: tuple[Kind[GpuDevice | None], ...] = (
    Kind("convolution", is_convolved, lambda: (Row("convolve", offer_convolve),)),
)
"""The kinds of problem, and their kernels in the order of preference."""

__all__ = ["WINDOWS", "is_convolved"]

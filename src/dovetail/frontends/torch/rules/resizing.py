"""Resampling of images."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir.dim import Size
from dovetail.ir.value import Value


@rule("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def upsample_nearest(
    n: Node, x: Value, output_size: Sequence[Size] | None, scale_factors: Sequence[float] | None = None
) -> Value:
    """The element before each place, as torch rounds it."""
    return _resized(n, x, "nearest", "asymmetric", scale_factors)


@rule("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec")
def upsample(
    n: Node,
    x: Value,
    output_size: Sequence[Size] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None = None,
) -> Value:
    """Linear or cubic interpolation along each spatial axis."""
    coordinates = "align_corners" if align_corners else "half_pixel"
    mode = "cubic" if "bicubic" in n.op_type else "linear"
    return _resized(n, x, mode, coordinates, None if align_corners else scale_factors)


def _resized(n: Node, x: Value, mode: str, coordinates: str, scales: Sequence[float] | None) -> Value:
    count = x.rank - 2
    axes = tuple(range(-count, 0))
    return ops.resize(
        x,
        axes=axes,
        sizes=n.shape[2:],
        scales=None if scales is None else tuple(float(s) for s in scales),
        mode=mode,
        coordinates=coordinates,
        rounding="floor",
        a=-0.75,
    )


@rule("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def grid_sampler(
    n: Node, x: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    """Images at the places of a grid."""
    return ops.grid_sample(
        x,
        grid,
        mode=("linear", "nearest", "cubic")[interpolation_mode],
        padding=("zeros", "border", "reflection")[padding_mode],
        align_corners=align_corners,
    )

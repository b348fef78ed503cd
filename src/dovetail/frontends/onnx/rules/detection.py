"""What detection models do with boxes and regions."""

from __future__ import annotations

import math

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f32, i64
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("NonMaxSuppression")
def non_max_suppression(
    n: Node,
    boxes: Value,
    scores: Value,
    max_output_boxes_per_class: Value | None = None,
    iou_threshold: Value | None = None,
    score_threshold: Value | None = None,
    *,
    center_point_box: int = 0,
) -> Value:
    """The best boxes of each class, without those that overlap a better one; how many the run finds."""
    if center_point_box not in (0, 1):
        raise n.malformed(f"center_point_box is {center_point_box}", hint="it is 0 or 1")
    return ops.non_max_suppression(
        boxes,
        scores,
        _number(n, max_output_boxes_per_class, 0, i64),
        _number(n, iou_threshold, 0.0, f32),
        _number(n, score_threshold, -math.inf, f32),
        centred=center_point_box == 1,
        count=n.fresh(f"{n.name}_boxes"),
    )


def _number(n: Node, value: Value | None, default: float, dtype: DType) -> Value:
    """An input that is one number, written as a scalar or as a vector of one."""
    if value is None or value.tensor.count == 0:
        return leaf.scalar(default, dtype)
    if value.rank > 1:
        raise n.malformed(f"{value.type} where one number is wanted")
    return build.squeeze_dims(value, 0) if value.rank else value


@rule("RoiAlign", since=10, until=15)
def roi_align_unshifted(
    n: Node,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Regions of images, each pooled to one size from samples between pixels."""
    return _roi_align(
        n, x, rois, batch_indices, mode, output_height, output_width, sampling_ratio, spatial_scale, aligned=False
    )


@rule("RoiAlign", since=16)
def roi_align(
    n: Node,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Regions of images, each pooled to one size from samples between pixels."""
    if coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
        raise n.malformed(f"coordinate_transformation_mode is {coordinate_transformation_mode!r}")
    return _roi_align(
        n,
        x,
        rois,
        batch_indices,
        mode,
        output_height,
        output_width,
        sampling_ratio,
        spatial_scale,
        aligned=coordinate_transformation_mode == "half_pixel",
    )


def _roi_align(
    n: Node,
    x: Value,
    rois: Value,
    batch_indices: Value,
    mode: str,
    height: int,
    width: int,
    samples: int,
    scale: float,
    *,
    aligned: bool,
) -> Value:
    if mode not in ("avg", "max"):
        raise n.malformed(f"mode is {mode!r}", hint="it is avg or max")
    return ops.roi_align(
        x,
        rois,
        batch_indices,
        height=height,
        width=width,
        scale=scale,
        samples=samples,
        aligned=aligned,
        mode="average" if mode == "avg" else "max",
    )


@rule("MaxRoiPool")
def max_roi_pool(n: Node, x: Value, rois: Value, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0) -> Value:
    """Regions of images, each cut into bins of whole pixels: the largest pixel of each."""
    if len(pooled_shape) != 2:
        raise n.malformed(f"pooled_shape is {pooled_shape}", hint="give height and width")
    return ops.roi_pool(x, rois, height=pooled_shape[0], width=pooled_shape[1], scale=spatial_scale)


_SAMPLED = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}


@rule("GridSample", since=16)
def grid_sample(
    n: Node,
    x: Value,
    grid: Value,
    *,
    align_corners: bool = False,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Value:
    """Images sampled at the points of a grid."""
    if mode not in _SAMPLED:
        raise n.malformed(f"mode is {mode!r}", hint=f"it is one of {', '.join(_SAMPLED)}")
    if not x.dtype.is_inexact:
        raise n.unsupported(f"samples of {x.dtype.name}", hint="cast to a float type first")
    return ops.grid_sample(x, grid, mode=_SAMPLED[mode], padding=padding_mode, align_corners=align_corners)

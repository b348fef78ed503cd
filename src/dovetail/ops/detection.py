"""Picking boxes, and sampling images at places between pixels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import FLOATS, INTEGERS, i64
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ops.gradient import NOT_FLOAT, Refused
from dovetail.ops.indexing import checked, counted
from dovetail.ops.primitive import Array, Fresh, SizeAttr, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.sampling import pixels_at, weigh
from dovetail.ops.special import wide


def _ranked(facts: Facts, type: Type, rank: int, what: str) -> TensorType:
    of = tensor(type)
    if of.rank != rank:
        raise TypeRuleError(f"{facts.op}: {what} of {of}", hint=f"they have rank {rank}")
    return of


def _suppressed(
    facts: Facts,
    boxes: Type,
    scores: Type,
    limit: Type,
    overlap: Type,
    score: Type,
    *,
    centred: bool,
    count: Size,
) -> Type:
    of, by = _ranked(facts, boxes, 3, "boxes"), _ranked(facts, scores, 3, "scores")
    one_dtype(facts, [of, by], FLOATS)
    one_dtype(facts, [_ranked(facts, limit, 0, "limits")], INTEGERS)
    one_dtype(facts, [_ranked(facts, overlap, 0, "thresholds")], FLOATS)
    one_dtype(facts, [_ranked(facts, score, 0, "thresholds")], FLOATS)
    facts.equal(of.shape[0], by.shape[0], "the batch of boxes, against that of scores")
    facts.equal(of.shape[1], by.shape[2], "the number of boxes, against that of scores")
    facts.equal(of.shape[2], 4, "the coordinates of a box")
    return TensorType(i64, (count, 3))


def _pairs(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(operands[1]).count * tensor(operands[0]).shape[1] * 10


@primitive(_suppressed, flops=_pairs, pull=NOT_FLOAT)
def non_max_suppression(
    boxes: Array,
    scores: Array,
    limit: Array,
    overlap: Array,
    score: Array,
    *,
    centred: bool = False,
    count: Fresh,
) -> Array:
    """Rows of batch, class and box: the best boxes first, without those that overlap a better one by more.

    Boxes [b, n, 4] are two corners, or middle and extent; scores are [b, c, n]. Overlap is intersection over union.
    Of each class at most `limit` are kept, and only those above `score`; -infinity keeps them all.
    """
    rows: list[tuple[int, int, int]] = []
    corners = _corners(boxes.astype(np.float64), centred)
    most, shared, least = int(limit), float(overlap), float(score)
    for batch, kind in np.ndindex(*scores.shape[:2]):
        likely = scores[batch, kind].astype(np.float64)
        order = np.argsort(-likely, kind="stable")
        kept: list[int] = []
        for box in order if least == -math.inf else order[likely[order] > least]:
            if len(kept) >= most:
                break
            if np.all(_overlap(corners[batch][kept], corners[batch][box]) <= shared):
                kept.append(int(box))
        rows += [(batch, kind, box) for box in kept]
    counted(len(rows), count, "non_max_suppression")
    return np.array(rows, np.int64).reshape(-1, 3)


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as lowest and highest corner."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _overlap(boxes: Array, box: Array) -> Array:
    """Intersection over union of many boxes with one; 0 where both are empty."""
    shared = np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2])
    both = np.prod(np.maximum(shared, 0), axis=1)
    union = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + np.prod(box[2:] - box[:2]) - both
    return np.where(union > 0, both / np.where(union > 0, union, 1), 0)


def _roi_align(
    facts: Facts,
    x: Type,
    regions: Type,
    batch: Type,
    *,
    height: Size,
    width: Size,
    scale: float,
    samples: int,
    aligned: bool,
    mode: str,
) -> Type:
    of, at = _ranked(facts, x, 4, "images"), _ranked(facts, regions, 2, "regions")
    dtype = one_dtype(facts, [of, at], FLOATS)
    which = _ranked(facts, batch, 1, "batch indices")
    one_dtype(facts, [which], INTEGERS)
    for size in of.shape[2:]:
        facts.at_least(size, 1, "an axis to sample")
    facts.equal(at.shape[1], 4, "the coordinates of a region")
    facts.equal(at.shape[0], which.shape[0], "the number of regions, against that of batch indices")
    if samples < 0:
        raise TypeRuleError(f"{facts.op} with {samples} samples", hint="0 takes as many as a bin has pixels")
    return TensorType(dtype, (at.shape[0], of.shape[1], height, width))


def _roi_align_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(result).count * 8 * max(attrs["samples"], 2) ** 2


_SAMPLED = Refused("places between pixels have no rule yet", "freeze what is before it, or sample with gather")


@primitive(_roi_align, flops=_roi_align_flops, pull=_SAMPLED)
def roi_align(
    x: Array,
    regions: Array,
    batch: Array,
    *,
    height: SizeAttr,
    width: SizeAttr,
    scale: float = 1.0,
    samples: int = 0,
    aligned: bool = True,
    mode: Literal["average", "max"] = "average",
) -> Array:
    """Regions (x1, y1, x2, y2) of images [b, c, h, w], each pooled to height x width bins from samples between pixels.

    `max` takes the largest weighted corner of all samples, as ONNX has it, and not the largest interpolated sample.
    """
    image = x.astype(wide(x.dtype))
    result = np.zeros((len(regions), x.shape[1], height, width), image.dtype)
    shift = 0.5 if aligned else 0.0
    for i, where in enumerate(checked(batch, len(x), "roi_align")):
        left, top, right, bottom = regions[i].astype(np.float64) * scale - shift
        rows = _bins(top, bottom, height, samples, aligned, x.shape[2])
        columns = _bins(left, right, width, samples, aligned, x.shape[3])
        corners = [_corner(image[where], row, column) for row in rows for column in columns]
        count = math.prod(corners[0].shape[2::2])
        if mode == "average":
            result[i] = sum(corner.sum((2, 4)) for corner in corners) / max(count, 1)
        elif count:
            result[i] = np.max([corner.max((2, 4)) for corner in corners], axis=0)
    return result.astype(x.dtype)


def _bins(start: float, stop: float, bins: int, samples: int, aligned: bool, size: int) -> list[tuple[Array, Array]]:
    """Return the two pixels around each sample [bin, sample] along an axis, with weights; none outside the image."""
    length = stop - start if aligned else max(stop - start, 1.0)
    step = length / bins if bins else 0.0
    count = samples or max(math.ceil(step), 0)
    at = start + step * (np.arange(bins)[:, None] + (np.arange(count) + 0.5) / max(count, 1))
    valid = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    # A clipped place is on a pixel, so that its other side has no weight.
    return [(low, valid * (low + 1 - at)), (np.minimum(low + 1, size - 1), at - low)]


def _corner(image: Array, row: tuple[Array, Array], column: tuple[Array, Array]) -> Array:
    """Return one weighted corner of every sample: [channel, bin, sample, bin, sample]."""
    return weigh(image[:, row[0][:, :, None, None], column[0]], row[1][:, :, None, None] * column[1])


def _roi_pool(facts: Facts, x: Type, regions: Type, *, height: Size, width: Size, scale: float) -> Type:
    of, at = _ranked(facts, x, 4, "images"), _ranked(facts, regions, 2, "regions")
    dtype = one_dtype(facts, [of, at], FLOATS)
    facts.equal(at.shape[1], 5, "the image of a region and its coordinates")
    for size in (height, width):
        facts.at_least(size, 1, "the bins along an axis")
    return TensorType(dtype, (at.shape[0], of.shape[1], height, width))


@primitive(_roi_pool, flops=lambda result, operands, attrs: tensor(result).count * 4, pull=_SAMPLED)
def roi_pool(x: Array, regions: Array, *, height: SizeAttr, width: SizeAttr, scale: float = 1.0) -> Array:
    """Regions (image, x1, y1, x2, y2) of whole pixels, each cut into height x width bins: the largest pixel of each."""
    result = np.zeros((len(regions), x.shape[1], height, width), x.dtype)
    numbers = regions.astype(np.float64)
    for i, where in enumerate(checked(numbers[:, 0], len(x), "roi_pool")):
        left, top, right, bottom = (int(np.copysign(np.floor(abs(n * scale) + 0.5), n)) for n in numbers[i, 1:])
        rows = _pixel_bins(top, bottom, height, x.shape[2])
        columns = _pixel_bins(left, right, width, x.shape[3])
        for row, column in itertools.product(range(height), range(width)):
            pixels = x[where][:, rows[row], columns[column]]
            if pixels.size:
                result[i, :, row, column] = pixels.max((1, 2))
    return result


def _pixel_bins(first: int, last: int, bins: int, size: int) -> list[slice]:
    """Return the pixels of each bin, from the one that it begins in to the one that it ends in."""
    length = max(last - first + 1, 1)
    ends = [(first + i * length // bins, first - (-(i + 1) * length // bins)) for i in range(bins)]
    return [slice(min(max(start, 0), size), min(max(stop, 0), size)) for start, stop in ends]


def _grid_sample(facts: Facts, x: Type, grid: Type, *, mode: str, padding: str, align_corners: bool) -> Type:
    of, at = tensor(x), tensor(grid)
    one_dtype(facts, [of], FLOATS)
    one_dtype(facts, [at], FLOATS)
    spatial = of.rank - 2
    if spatial < 1 or at.rank != of.rank:
        raise TypeRuleError(f"{facts.op}: {at} into {of}", hint="images are [b, c, …], the grid [b, …, axes]")
    facts.equal(at.shape[-1], spatial, "the coordinates of a place, against the axes of an image")
    batch = facts.equal(of.shape[0], at.shape[0], "the batch of images, against that of places")
    for size in of.shape[2:]:
        facts.at_least(size, 1, "an axis to sample")
    return TensorType(of.dtype, (batch, of.shape[1], *at.shape[1:-1]))


_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


def _grid_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(result).count * 2 * _TAPS[attrs["mode"]] ** (tensor(operands[0]).rank - 2)


@primitive(_grid_sample, flops=_grid_flops, pull=_SAMPLED)
def grid_sample(
    x: Array,
    grid: Array,
    *,
    mode: Literal["nearest", "linear", "cubic"] = "linear",
    padding: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = False,
) -> Array:
    """Images [b, c, …] at the places of a grid: -1 is the first edge of an axis, 1 the last; the last axis comes first.

    With align_corners, -1 and 1 are the middles of the outermost pixels.
    """
    return sampled(x, grid, mode=mode, padding=padding, align_corners=align_corners)


def sampled(x: Array, grid: Array, *, mode: str, padding: str, align_corners: bool, of: Any = np) -> Array:
    """Compute `grid_sample` in any array library that has NumPy's functions."""
    channels_last = of.moveaxis(x.astype(wide(x.dtype)), 1, -1)
    axes: list[list[tuple[Array, Array]]] = []
    for axis, size in enumerate(x.shape[2:]):
        place = grid[..., x.ndim - 3 - axis].astype(np.float64)
        span = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        at = span[0] + (place + 1) / 2 * (span[1] - span[0])
        axes.append(pixels_at(at, size, mode, padding, span, of))
    batch = np.arange(len(x)).reshape((-1, *(1,) * (grid.ndim - 2)))
    total = of.zeros((*grid.shape[:-1], x.shape[1]), channels_last.dtype)
    for taps in itertools.product(*axes):
        weight: Any = math.prod(w for _, w in taps)
        total = total + weigh(channels_last[(batch, *(i for i, _ in taps))], weight[..., None], of)
    return of.moveaxis(total, -1, 1).astype(x.dtype)


FAMILY = family(globals())


__all__ = ["grid_sample", "non_max_suppression", "roi_align", "roi_pool"]

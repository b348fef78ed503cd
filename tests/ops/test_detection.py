"""Boxes and sampling against loops over single numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import FLOATS, DType, f32, i64
from dovetail.ir.type import TensorType
from tests.ops.meaning import Array, array, meaning
from tests.tolerances import assert_close

BOXES = [
    [0.0, 0.0, 1.0, 1.0],
    [0.0, 0.1, 1.0, 1.1],
    [0.0, -0.1, 1.0, 0.9],
    [0.0, 10.0, 1.0, 11.0],
    [0.0, 10.1, 1.0, 11.1],
    [0.0, 100.0, 1.0, 101.0],
]
SCORES = [0.9, 0.75, 0.6, 0.95, 0.5, 0.3]


def _suppress(boxes: Any, scores: Any, **attrs: Any) -> list[list[int]]:
    dtype = attrs.pop("dtype", f32)
    limits = (
        np.array(attrs.pop("limit", 100)),
        array(f32, attrs.pop("overlap", 0.5)),
        array(f32, attrs.pop("score", -math.inf)),
    )
    attrs = {"count": symbol("n"), **attrs}
    return meaning(ops.non_max_suppression, array(dtype, boxes), array(dtype, scores), *limits, **attrs).tolist()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_better_of_two_that_overlap_is_kept(dtype: DType) -> None:
    assert _suppress([BOXES], [[SCORES]], dtype=dtype) == [[0, 0, 3], [0, 0, 0], [0, 0, 5]]


def test_limits_and_scores() -> None:
    assert _suppress([BOXES], [[SCORES]], limit=2) == [[0, 0, 3], [0, 0, 0]]
    assert _suppress([BOXES], [[SCORES]], limit=0) == []
    assert _suppress([BOXES], [[SCORES]], score=0.4) == [[0, 0, 3], [0, 0, 0]]
    assert _suppress([BOXES], [[[0.5] * 6]], score=0.5) == [], "a score must lie above, not at"


def test_corners_in_any_order_and_boxes_by_their_middle() -> None:
    turned = [[y2, x2, y1, x1] if i % 2 else [y2, x1, y1, x2] for i, (y1, x1, y2, x2) in enumerate(BOXES)]
    middles = [[(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1] for y1, x1, y2, x2 in BOXES]
    expected = _suppress([BOXES], [[SCORES]])
    assert _suppress([turned], [[SCORES]]) == expected
    assert _suppress([middles], [[SCORES]], centred=True) == expected


def test_batches_and_classes_stand_for_themselves() -> None:
    got = _suppress([BOXES, BOXES[::-1]], [[SCORES, SCORES[::-1]], [SCORES[::-1], SCORES]])
    # Reversed scores: box 2 beats 0 and 1, box 4 before 3 loses to it.
    assert [row[:2] for row in got] == [[b, c] for b in range(2) for c in range(2) for _ in range(3)]
    assert [row[2] for row in got[:3]] == [3, 0, 5]
    assert [row[2] for row in got[6:9]] == [2, 5, 0]


def test_equal_boxes_and_equal_scores_keep_the_first() -> None:
    assert _suppress([[BOXES[0]] * 4], [[[0.5] * 4]]) == [[0, 0, 0]]
    apart = [[i * 2.0, 0.0, i * 2.0 + 1, 1.0] for i in range(3)]
    assert _suppress([apart], [[[0.5] * 3]], overlap=0.0) == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]


def test_an_overlap_at_the_threshold_is_kept() -> None:
    half = [[0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
    assert len(_suppress([half], [[[0.9, 0.8]]], overlap=0.5)) == 2
    assert len(_suppress([half], [[[0.9, 0.8]]], overlap=0.49)) == 1


def test_empty_boxes_and_no_boxes() -> None:
    assert len(_suppress([[[0.0, 0.0, 0.0, 0.0]] * 2], [[[0.9, 0.8]]])) == 2
    assert _suppress(np.zeros((1, 0, 4)), np.zeros((1, 2, 0))) == []
    with pytest.raises(BindError, match="found 3 where 2 were promised"):
        _suppress([BOXES], [[SCORES]], count=2)


def test_boxes_that_do_not_fit_their_scores_are_refused() -> None:
    def suppress(boxes: TensorType, scores: TensorType, limit: TensorType = i64[()]) -> None:
        operands = {"b": boxes, "s": scores, "limit": limit, "overlap": f32[()], "score": f32[()]}
        ops.non_max_suppression(*(leaf.input(name, t) for name, t in operands.items()), count=symbol("n"))

    with pytest.raises(TypeRuleError, match="number of boxes"):
        suppress(f32[1, 5, 4], f32[1, 2, 6])
    with pytest.raises(TypeRuleError, match="boxes of f32"):
        suppress(f32[5, 4], f32[1, 2, 5])
    with pytest.raises(TypeRuleError, match="limits of i64"):
        suppress(f32[1, 5, 4], f32[1, 2, 5], i64[1])


def test_roi_pool() -> None:
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6) % 11
    got = meaning(ops.roi_pool, x, array(f32, [[0, 2, 2, 9, 8], [0, 20, 20, 30, 30]]), height=2, width=2, scale=0.5)
    # 2..8 by half is rows 1..4 of whole pixels, 2..9 columns 1..5, as 4.5 is rounded away from 0.
    rows, columns = (slice(1, 3), slice(3, 5)), (slice(1, 4), slice(3, 6))
    expected = [[x[0, 0, r, c].max() for c in columns] for r in rows]
    assert got[0, 0].tolist() == expected
    assert got[1, 0].tolist() == [[0, 0], [0, 0]], "nothing of it lies in the image"
    with pytest.raises(TypeRuleError, match="bins"):
        ops.roi_pool(leaf.constant(x), leaf.input("r", f32[2, 5]), height=0, width=2)


def _pooled(image: Array, region: list[float], bins: tuple[int, int], **attrs: Any) -> Array:
    """One region of one channel, sample by sample."""
    scale, samples, aligned, mode = (attrs[k] for k in ("scale", "samples", "aligned", "mode"))
    shift = 0.5 if aligned else 0.0
    x1, y1, x2, y2 = (c * scale - shift for c in region)
    high, wide = (y2 - y1, x2 - x1) if aligned else (max(y2 - y1, 1.0), max(x2 - x1, 1.0))
    steps = (high / bins[0], wide / bins[1])
    counts = [samples or math.ceil(s) for s in steps]
    result = np.zeros(bins)
    for i, j in np.ndindex(*bins):
        corners: list[list[float]] = []
        for a, b in np.ndindex(*counts):
            y = y1 + i * steps[0] + (a + 0.5) * steps[0] / counts[0]
            x = x1 + j * steps[1] + (b + 0.5) * steps[1] / counts[1]
            corners.append(_corners(image, y, x))
        total = sum(sum(c) for c in corners) / max(len(corners), 1)
        result[i, j] = total if mode == "average" else max((max(c) for c in corners), default=0.0)
    return result


def _corners(image: Array, y: float, x: float) -> list[float]:
    rows, columns = image.shape
    if not (-1 <= y <= rows and -1 <= x <= columns):
        return [0.0] * 4
    y, x = min(max(y, 0.0), rows - 1.0), min(max(x, 0.0), columns - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
    v, u = y - top, x - left
    return [
        (1 - v) * (1 - u) * image[top, left],
        (1 - v) * u * image[top, right],
        v * (1 - u) * image[bottom, left],
        v * u * image[bottom, right],
    ]


REGIONS = [
    [0.0, 0.0, 6.0, 4.0],
    [1.3, 0.7, 3.9, 5.2],
    [-3.0, -2.0, 9.0, 8.0],
    [2.0, 2.0, 2.0, 2.0],
    [20.0, 20.0, 30.0, 30.0],
]


@pytest.mark.parametrize("mode", ["average", "max"])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("samples", [0, 1, 2])
def test_roi_align(mode: str, aligned: bool, samples: int) -> None:
    x = np.random.default_rng(9).normal(size=(2, 3, 5, 6)).astype(np.float32)
    batch = [0, 1, 1, 0, -1]
    attrs: dict[str, Any] = {"scale": 0.75, "samples": samples, "aligned": aligned, "mode": mode}
    got = meaning(ops.roi_align, x, array(f32, REGIONS), np.array(batch), height=2, width=3, **attrs)
    regions = array(f32, REGIONS).tolist()
    expected = [
        [_pooled(x[b, c].astype(np.float64), r, (2, 3), **attrs) for c in range(3)]
        for r, b in zip(regions, batch, strict=True)
    ]
    assert_close(got, np.array(expected), f32)


def test_roi_align_of_a_ramp_is_the_ramp() -> None:
    """A region that covers whole pixels averages to their middles, by hand."""
    ramp = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    got = meaning(ops.roi_align, ramp, array(f32, [[0, 0, 4, 4]]), np.array([0]), height=2, width=2, samples=2)
    assert got[0, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_roi_align_in_every_float_type(dtype: DType) -> None:
    x = np.ones((1, 2, 3, 3), dtype.numpy)
    got = meaning(ops.roi_align, x, array(dtype, [[0, 0, 2, 2]]), np.array([0]), height=1, width=1)
    assert got.tolist() == [[[[1]], [[1]]]]


def test_roi_align_reads_no_pixel_outside_of_its_region() -> None:
    x = np.ones((1, 1, 4, 4), np.float32)
    x[0, 0, 3, 3] = np.nan
    got = meaning(ops.roi_align, x, array(f32, [[0, 0, 2, 2]]), np.array([0]), height=1, width=1, samples=2)
    assert got.tolist() == [[[[1]]]]


def test_roi_align_at_the_edges() -> None:
    x, none = np.ones((1, 1, 2, 2), np.float32), np.zeros((0, 4), np.float32)
    assert meaning(ops.roi_align, x, none, np.zeros(0, np.int64), height=2, width=2).shape == (0, 1, 2, 2)
    with pytest.raises(BindError, match="roi_align: index 1 into an axis of size 1"):
        meaning(ops.roi_align, x, array(f32, [[0, 0, 1, 1]]), np.array([1]), height=1, width=1)
    with pytest.raises(TypeRuleError, match="number of regions"):
        ops.roi_align(leaf.constant(x), leaf.input("r", f32[2, 4]), leaf.input("b", i64[3]), height=1, width=1)


def _folded(i: int, size: int, padding: str, align: bool) -> int | None:
    """The pixel that stands at place i of an image that goes on for ever."""
    if padding == "zeros":
        return i if 0 <= i < size else None
    if padding == "border":
        return min(max(i, 0), size - 1)
    period = max(2 * (size - 1), 1) if align else 2 * size
    i %= period
    return i if i < size else period - i - (0 if align else 1)


def _keys(distance: float) -> float:
    """The cubic kernel with a = -0.75, multiplied out."""
    d = abs(distance)
    if d < 1:
        return 1.25 * d**3 - 2.25 * d**2 + 1
    return -0.75 * d**3 + 3.75 * d**2 - 6 * d + 3 if d < 2 else 0.0


def _nearest(at: float) -> dict[int, float]:
    return {round(at): 1.0}


def _linear(at: float) -> dict[int, float]:
    return {math.floor(at) + k: 1 - abs(at - math.floor(at) - k) for k in (0, 1)}


def _cubic(at: float) -> dict[int, float]:
    return {math.floor(at) + k: _keys(at - math.floor(at) - k) for k in (-1, 0, 1, 2)}


WEIGHTS: dict[str, Callable[[float], dict[int, float]]] = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}


def _sampled(image: Array, place: list[float], mode: str, padding: str, align: bool) -> float:
    axes: list[list[tuple[int | None, float]]] = []
    for size, g in zip(image.shape, reversed(place), strict=True):
        at = (g + 1) / 2 * (size - 1) if align else ((g + 1) * size - 1) / 2
        axes.append([(_folded(i, size, padding, align), w) for i, w in WEIGHTS[mode](at).items()])
    total = 0.0
    for taps in itertools.product(*axes):
        pixel = [i for i, _ in taps if i is not None]
        if len(pixel) == len(taps):
            total += float(image[tuple(pixel)]) * math.prod(w for _, w in taps)
    return total


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", WEIGHTS)
@pytest.mark.parametrize("sizes", [(5,), (4, 3), (3, 2, 4), (1, 3)])
def test_grid_sample(sizes: tuple[int, ...], mode: str, padding: str, align: bool) -> None:
    generator = np.random.default_rng(10)
    x = generator.normal(size=(2, 2, *sizes)).astype(np.float32)
    grid = generator.uniform(-2.5, 2.5, size=(2, *[2] * len(sizes), len(sizes)))
    got = meaning(ops.grid_sample, x, grid, mode=mode, padding=padding, align_corners=align)
    for place in np.ndindex(got.shape):
        n, c, *rest = place
        expected = _sampled(x[n, c], grid[(n, *rest)].tolist(), mode, padding, align)
        assert math.isclose(got[place], expected, rel_tol=1e-4, abs_tol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", WEIGHTS)
def test_sampling_every_pixel_gives_the_image_back(mode: str, dtype: DType) -> None:
    x = array(dtype, np.arange(12).reshape(1, 1, 3, 4))
    rows, columns = np.meshgrid([-1.0, 0.0, 1.0], [-1.0, -1 / 3, 1 / 3, 1.0], indexing="ij")
    grid = np.stack([columns, rows], axis=-1)[None]
    got = meaning(ops.grid_sample, x, grid, mode=mode, align_corners=True)
    assert_close(got, x.astype(np.float64), dtype)


def test_nearest_takes_the_even_pixel_of_two() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    grid = np.array([[[-1 + 2 * (i + 0.5) / 3] for i in range(3)]])
    assert meaning(ops.grid_sample, x, grid, mode="nearest", align_corners=True).tolist() == [[[0, 2, 2]]]


def test_what_lies_outside_is_not_read() -> None:
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    got = meaning(ops.grid_sample, x, np.full((1, 1, 1, 2), 9.0))
    assert got.tolist() == [[[[0]]]]
    assert np.isnan(meaning(ops.grid_sample, np.ones_like(x), np.full((1, 1, 1, 2), np.nan))).all()


def test_grids_that_do_not_fit_are_refused() -> None:
    x = leaf.input("x", f32["n", 3, 8, 8])
    found = ops.grid_sample(x, leaf.input("g", f32["m", 5, 6, 2]))
    assert str(found.type) == "f32[m, 3, 5, 6]"
    assert [str(c) for c in found.constraints] == ["n equals m"]
    with pytest.raises(TypeRuleError, match="axes of an image"):
        ops.grid_sample(x, leaf.input("g", f32["n", 5, 6, 3]))
    with pytest.raises(TypeRuleError, match="into f32"):
        ops.grid_sample(x, leaf.input("g", f32["n", 5, 2]))
    with pytest.raises(TypeRuleError, match="choices"):
        ops.grid_sample(x, leaf.input("g", f32["n", 5, 6, 2]), mode="bilinear")


def test_no_batch_and_no_places() -> None:
    assert meaning(ops.grid_sample, np.ones((0, 1, 2), np.float32), np.ones((0, 3, 1), np.float32)).shape == (0, 1, 3)
    assert meaning(ops.grid_sample, np.ones((2, 1, 2), np.float32), np.ones((2, 0, 1), np.float32)).shape == (2, 1, 0)

"""Boxes, regions and grids as onnxruntime has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32, f64, i32, i64
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, model, node

random = np.random.default_rng(17)
BOXES = {"boxes": f32["n", "s", 4], "scores": f32["n", "c", "s"]}


def _floats(*shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def _candidates(n: int, classes: int, count: int) -> dict[str, Array]:
    corner = random.uniform(0, 4, (n, count, 2))
    boxes = np.concatenate([corner, corner + random.uniform(0.5, 3, corner.shape)], axis=2)
    return {"boxes": boxes.astype(np.float32), "scores": random.uniform(0, 1, (n, classes, count)).astype(np.float32)}


@pytest.mark.parametrize("center_point_box", [0, 1])
@pytest.mark.parametrize("inputs", ["limit", "limit iou", "limit iou score", "limit _ score", "_ iou score"])
def test_non_max_suppression(inputs: str, center_point_box: int) -> None:
    numbers = {"limit": np.array([7]), "iou": np.array([0.4], np.float32), "score": np.array(0.3, np.float32)}
    made = model(
        [node(f"NonMaxSuppression boxes scores {inputs} -> y", center_point_box=center_point_box)],
        BOXES,
        ["y"],
        opset=11,
        initializers={name: numbers[name] for name in inputs.split() if name != "_"},
    )
    assert_like_onnxruntime(made, _candidates(1, 1, 20), _candidates(2, 3, 30), _candidates(1, 2, 5))


def test_thresholds_of_the_run() -> None:
    types = {**BOXES, "limit": i64[1], "iou": f32[1], "score": f32[1]}
    made = model(["NonMaxSuppression boxes scores limit iou score -> y"], types, ["y"])
    given = _candidates(1, 2, 20)
    feeds = [
        {**given, "limit": np.array([limit]), "iou": np.array([iou], np.float32), "score": np.array([s], np.float32)}
        for limit, iou, s in ((3, 0.5, 0.1), (100, 0.1, 0.5), (0, 0.5, 0.5))
    ]
    assert_like_onnxruntime(made, *feeds)


def test_boxes_that_the_run_finds_go_on() -> None:
    nodes = ["NonMaxSuppression boxes scores limit iou -> found", node("Gather found two -> at", axis=1)]
    nodes += [node("Squeeze at axes -> flat"), node("Gather boxes flat -> y", axis=1)]
    constants = {"limit": np.array(5), "iou": np.array(0.5, np.float32), "two": np.array([2]), "axes": np.array([1])}
    made = model(nodes, BOXES, ["y"], opset=13, initializers=constants)
    assert_like_onnxruntime(made, _candidates(1, 1, 20), _candidates(1, 2, 9))


REGIONS = np.array([[0, 0, 7, 7], [1.5, 2.5, 6, 4], [-3, 5, 3, 20], [4, 4, 4.2, 4.1], [30, 30, 40, 40]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(("opset", "place"), [(10, None), (16, "half_pixel"), (21, "output_half_pixel"), (16, None)])
def test_roi_align(mode: str, opset: int, place: str | None) -> None:
    shared: dict[str, Any] = {"mode": mode, "output_height": 3, "output_width": 2, "spatial_scale": 0.5}
    if place is not None:
        shared["coordinate_transformation_mode"] = place
    types = {"x": f32["n", 2, "h", "w"], "r": f32["k", 4], "b": i64["k"]}
    feeds = [{"x": _floats(2, 2, 8, 9), "r": REGIONS[:k], "b": np.arange(k) % 2} for k in (5, 3)]
    for samples in (0, 2):
        made = model([node("RoiAlign x r b -> y", sampling_ratio=samples, **shared)], types, ["y"], opset=opset)
        assert_like_onnxruntime(made, *feeds, scale=4)


def test_max_roi_pool() -> None:
    regions = np.array([[0, 0, 0, 7, 7], [1, 2, 3, 12, 9], [0, -4, 5, 30, 8], [1, 6, 6, 6, 6]], np.float32)
    for scale in (1.0, 0.5):
        nodes = [node("MaxRoiPool x r -> y", pooled_shape=[3, 2], spatial_scale=scale)]
        made = model(nodes, {"x": f32["n", 2, "h", "w"], "r": f32["k", 5]}, ["y"], opset=9)
        assert_like_onnxruntime(made, *({"x": _floats(2, 2, 8, 9), "r": regions[:k]} for k in (4, 2)))


MODES = {16: ("bilinear", "nearest", "bicubic"), 20: ("linear", "nearest", "cubic")}


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("opset", [16, 20])
def test_grid_sample(padding: str, align: int, opset: int) -> None:
    types = {"x": f32["n", 2, "h", "w"], "g": f32["n", "p", "q", 2]}
    feeds = [{"x": _floats(n, 2, 5, 6), "g": _floats(n, 4, p, 2)} for n, p in ((1, 3), (2, 5))]
    for mode in MODES[opset]:
        nodes = [node("GridSample x g -> y", mode=mode, padding_mode=padding, align_corners=align)]
        assert_like_onnxruntime(model(nodes, types, ["y"], opset=opset), *feeds, scale=16)


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_of_volumes(padding: str) -> None:
    types = {"x": f32["n", 2, "d", "h", "w"], "g": f32["n", "o", "p", "q", 3]}
    feed = {"x": _floats(1, 2, 4, 5, 6), "g": _floats(1, 2, 3, 4, 3)}
    for mode, align in (("linear", 0), ("nearest", 1)):
        nodes = [node("GridSample x g -> y", mode=mode, padding_mode=padding, align_corners=align)]
        assert_like_onnxruntime(model(nodes, types, ["y"], opset=20), feed, scale=16)


@pytest.mark.slow
def test_affine_grid() -> None:
    made = model(
        [node("AffineGrid t s -> g", align_corners=1), "GridSample x g -> y"],
        {"t": f32["n", 2, 3], "x": f32["n", 2, 6, 7]},
        ["y"],
        opset=20,
        initializers={"s": np.array([2, 2, 4, 5])},
    )
    theta = np.broadcast_to(np.array([[1, 0.2, 0.1], [-0.1, 0.9, 0]], np.float32), (2, 2, 3))
    assert_like_onnxruntime(made, {"t": theta, "x": _floats(2, 2, 6, 7)}, scale=16)


def test_what_does_not_fit_is_refused() -> None:
    def grid(x: Any, **attributes: Any) -> None:
        import_model(model([node("GridSample x g -> y", **attributes)], {"x": x, "g": f32[1, 2, 2, 2]}, ["y"]))

    with pytest.raises(LoadError, match="mode is 'spline'"):
        grid(f32[1, 1, 4, 4], mode="spline")
    with pytest.raises(UnsupportedError, match="samples of i32"):
        grid(i32[1, 1, 4, 4])
    with pytest.raises(LoadError, match="center_point_box is 2"):
        import_model(model([node("NonMaxSuppression boxes scores -> y", center_point_box=2)], BOXES, ["y"]))
    with pytest.raises(LoadError, match="one number is wanted"):
        types = {**BOXES, "limit": i64[1, 1]}
        import_model(model(["NonMaxSuppression boxes scores limit -> y"], types, ["y"]))
    with pytest.raises(LoadError, match="mode is 'min'"):
        types = {"x": f64[1, 1, 4, 4], "r": f64[1, 4], "b": i64[1]}
        import_model(model([node("RoiAlign x r b -> y", mode="min")], types, ["y"]))
    with pytest.raises(LoadError, match="pooled_shape"):
        import_model(
            model([node("MaxRoiPool x r -> y", pooled_shape=[2])], {"x": f32[1, 1, 4, 4], "r": f32[1, 5]}, ["y"])
        )

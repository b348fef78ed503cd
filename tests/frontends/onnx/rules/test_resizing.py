"""Resize and Upsample as onnxruntime has them: one compile for every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from dovetail.errors import BindError, LoadError, NeedsValueError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32, i32, i64
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node

random = np.random.default_rng(13)
MODES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
KINDS = [*(("nearest", rounding) for rounding in ROUNDINGS), ("linear", "floor"), ("cubic", "floor")]


def _floats(*shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def _vector(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def _feeds(*sizes: tuple[int, int]) -> list[dict[str, Array]]:
    return [{"x": _floats(n, 2, *size)} for n, size in zip((1, 2, 1), sizes, strict=False)]


def _resize(inputs: str, initializers: dict[str, Array], *, opset: int = 19, **attributes: Any) -> Any:
    nodes = [node(f"Resize x {inputs} -> y", **attributes)]
    return model(nodes, {"x": f32["n", 2, "h", "w"]}, ["y"], opset=opset, initializers=initializers)


@pytest.mark.parametrize(("mode", "rounding"), KINDS)
@pytest.mark.parametrize("place", MODES)
def test_scales(mode: str, rounding: str, place: str) -> None:
    attributes: dict[str, Any] = {"mode": mode, "nearest_mode": rounding, "coordinate_transformation_mode": place}
    for scales in ((2.0, 3.0), (0.5, 0.25), (2.0, 0.5)):
        made = _resize("_ s", {"s": _vector(1, 1, *scales)}, opset=13, **attributes)
        assert_like_onnxruntime(made, *_feeds((4, 8), (8, 4), (12, 16)), scale=4)


@pytest.mark.parametrize(("mode", "rounding"), KINDS)
@pytest.mark.parametrize("place", MODES)
def test_sizes(mode: str, rounding: str, place: str) -> None:
    attributes: dict[str, Any] = {"mode": mode, "nearest_mode": rounding, "coordinate_transformation_mode": place}
    made = _resize("_ _ s", {"s": np.array([7, 5])}, axes=[2, 3], **attributes)
    # These lengths put no place so close to the middle of two pixels that float32 decides.
    assert_like_onnxruntime(made, *_feeds((4, 9), (16, 8)), scale=16)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "rounding"), KINDS)
@pytest.mark.parametrize("place", ["half_pixel", "asymmetric"])
def test_scales_to_a_fraction(mode: str, rounding: str, place: str) -> None:
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": place, "nearest_mode": rounding}
    for scales in ((0.6, 0.7), (1.3, 1.1), (1.5, 0.9), (2 / 3, 0.1)):
        made = _resize("_ s", {"s": _vector(1, 1, *scales)}, opset=13, **attributes)
        assert_like_onnxruntime(made, *_feeds((5, 30), (10, 20), (11, 13)), scale=4)


def test_symmetric_places() -> None:
    attributes: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}
    made = _resize("_ s", {"s": _vector(1, 1, 2.3, 0.7)}, **attributes)
    assert_like_onnxruntime(made, *_feeds((4, 9), (5, 8)), scale=4)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode: str) -> None:
    made = _resize("_ s", {"s": _vector(1, 1, 0.5, 0.4)}, mode=mode, antialias=1)
    assert_like_onnxruntime(made, *_feeds((8, 10), (6, 15)), scale=8)


@pytest.mark.parametrize("coefficient", [-0.75, -0.5])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_cubic(coefficient: float, exclude_outside: int) -> None:
    made = _resize(
        "_ s", {"s": _vector(1, 1, 1.5, 2)}, mode="cubic", cubic_coeff_a=coefficient, exclude_outside=exclude_outside
    )
    assert_like_onnxruntime(made, *_feeds((4, 6), (6, 5)), scale=8)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_region_is_cut_out(mode: str) -> None:
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.0,
    }
    inputs = {"r": _vector(0, 0, 0.4, -0.25, 1, 1, 0.9, 1.2), "s": np.array([1, 2, 5, 6])}
    made = model(
        [node("Resize x r _ s -> y", **attributes)], {"x": f32[1, 2, "h", "w"]}, ["y"], opset=13, initializers=inputs
    )
    assert_like_onnxruntime(made, {"x": _floats(1, 2, 7, 8)}, {"x": _floats(1, 2, 4, 9)}, scale=16)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_the_aspect_ratio_is_kept(policy: str) -> None:
    nodes = [node("Resize x _ _ s -> y", axes=[2, 3], keep_aspect_ratio_policy=policy, mode="linear")]
    for size in ((4, 6), (7, 3)):
        made = model(nodes, {"x": f32["n", 2, *size]}, ["y"], opset=19, initializers={"s": np.array([9, 10])})
        assert_like_onnxruntime(made, *_feeds(size, size), scale=4)
    with pytest.raises(UnsupportedError, match="keep_aspect_ratio_policy"):
        import_model(_resize("_ _ s", {"s": np.array([9, 10])}, axes=[2, 3], keep_aspect_ratio_policy=policy))


def test_to_the_sizes_of_another_tensor() -> None:
    made = model(
        [
            "Shape x -> a",
            "Shape z -> b",
            "Slice a zero two -> front",
            "Slice b two four -> back",
            node("Concat front back -> sizes", axis=0),
            node("Resize x e e sizes -> y", mode="linear", coordinate_transformation_mode="align_corners"),
        ],
        {"x": f32["n", 2, "h", "w"], "z": f32["m", 3, "p", "q"]},
        ["y"],
        opset=11,
        initializers={"zero": np.array([0]), "two": np.array([2]), "four": np.array([4]), "e": _vector()},
    )
    feeds = [{"x": _floats(1, 2, *a), "z": _floats(1, 3, *b)} for a, b in (((4, 5), (8, 3)), ((6, 6), (6, 6)))]
    assert_like_onnxruntime(made, *feeds, scale=4)


def test_whole_numbers_are_not_interpolated() -> None:
    x = np.arange(12, dtype=np.int32).reshape(1, 1, 3, 4)
    nearest = model(["Resize x _ s -> y"], {"x": i32[1, 1, 3, 4]}, ["y"], initializers={"s": _vector(1, 1, 2, 2)})
    assert_like_onnxruntime(nearest, {"x": x})
    nearest.graph.node[0].attribute.extend(node("Resize x -> y", mode="linear").attribute)
    with pytest.raises(UnsupportedError, match="linear interpolation of i32"):
        import_model(nearest)


def test_nothing_to_do_is_nothing() -> None:
    graph = import_model(_resize("_ s", {"s": _vector(1, 1, 1, 1)}, mode="cubic"))
    assert graph.outputs["y"] is graph.inputs[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_the_first_opsets(mode: str) -> None:
    types = {"x": f32["n", 2, "h", "w"]}
    for scales in ((2.0, 3.0), (1.5, 2.5)):
        upsample = [node("Upsample x -> y", mode=mode, scales=[1.0, 1.0, *scales])]
        assert_like_onnxruntime(model(upsample, types, ["y"], opset=7), *_feeds((3, 4), (5, 2)), scale=4)
        upsample = [node("Upsample x s -> y", mode=mode)]
        made = model(upsample, types, ["y"], opset=9, initializers={"s": _vector(1, 1, *scales)})
        assert_like_onnxruntime(made, *_feeds((3, 4), (5, 2)), scale=4)
    for scales in ((0.6, 0.6), (0.5, 2.0), (1.0, 0.7)):
        made = _resize("s", {"s": _vector(1, 1, *scales)}, opset=10, mode=mode)
        assert_like_onnxruntime(made, *_feeds((5, 4), (10, 7)), scale=4)


def test_upsample_before_opset_7() -> None:
    made = model([node("Upsample x -> y", height_scale=2.0, width_scale=3.0)], {"x": f32[1, 1, 2, 2]}, ["y"], opset=6)
    (got,) = by_dovetail(made, {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)})
    assert got["y"][0, 0].tolist() == [[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2


@pytest.mark.slow
def test_what_does_not_fit_is_refused() -> None:
    both = {"s": _vector(1, 1, 2, 2), "z": np.array([1, 2, 8, 8])}
    with pytest.raises(LoadError, match="scales and sizes at once, or neither"):
        import_model(_resize("_ s z", both))
    with pytest.raises(LoadError, match="tf_crop_and_resize without roi"):
        import_model(_resize("_ s", {"s": both["s"]}, coordinate_transformation_mode="tf_crop_and_resize"))
    aligned = node("Resize x _ s -> y", coordinate_transformation_mode="align_corners")
    made = model([aligned], {"x": f32[1, 2, 5, 4]}, ["y"], initializers={"s": _vector(1, 1, 1.5, 2)})
    with pytest.raises(UnsupportedError, match=r"corners aligned where 5 is scaled by 1\.5"):
        import_model(made)
    made = model([aligned], {"x": f32[1, 2, "h", 4]}, ["y"], initializers={"s": _vector(1, 1, 1.5, 2)})
    with pytest.raises(BindError, match="does not hold"):
        by_dovetail(made, {"x": _floats(1, 2, 5, 4)})
    made = model(["Resize x _ _ z -> y"], {"x": f32[1, 2, 4, 4], "z": i64[4]}, ["y"])
    assert_like_onnxruntime(made, {"x": _floats(1, 2, 4, 4)}, fixed={"z": both["z"]})
    assert_like_onnxruntime(made, {"x": _floats(1, 2, 4, 4), "z": both["z"]})


@pytest.mark.parametrize(("mode", "rounding"), KINDS)
@pytest.mark.parametrize("place", [*MODES, "half_pixel_symmetric"])
def test_sizes_that_come_as_data(mode: str, rounding: str, place: str) -> None:
    if mode == "nearest" and place == "half_pixel_symmetric":
        pytest.skip("these lengths put places between two pixels, where float32 decides")
    attributes: dict[str, Any] = {"mode": mode, "nearest_mode": rounding, "coordinate_transformation_mode": place}
    nodes = [node("Resize x e e s -> y", axes=[2, 3], **attributes)]
    made = model(nodes, {"x": f32["n", 2, "h", "w"], "s": i64[2]}, ["y"], opset=19, initializers={"e": _vector()})
    feeds = [{**feed, "s": np.array([7, 5])} for feed in _feeds((4, 9), (16, 8))]
    assert_like_onnxruntime(made, *feeds, {"x": _floats(1, 2, 6, 6), "s": np.array([6, 1])}, scale=16)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "rounding"), KINDS)
@pytest.mark.parametrize("place", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
def test_scales_that_come_as_data(mode: str, rounding: str, place: str) -> None:
    attributes: dict[str, Any] = {"mode": mode, "nearest_mode": rounding, "coordinate_transformation_mode": place}
    nodes = [node("Resize x e s -> y", **attributes)]
    made = model(nodes, {"x": f32["n", 2, "h", "w"], "s": f32[4]}, ["y"], opset=13, initializers={"e": _vector()})
    feeds = _feeds((5, 30), (10, 20), (11, 13))
    assert_like_onnxruntime(made, *({**f, "s": _vector(1, 1, 2, 0.5)} for f in feeds), scale=4)
    assert_like_onnxruntime(made, *({**f, "s": _vector(1, 1, 1.3, 1.1)} for f in feeds), scale=4)


@pytest.mark.slow
def test_sizes_computed_from_data() -> None:
    """Only the axes whose sizes are not known are resampled, and cubic weights leave out what is outside."""
    nodes = [
        node("Cast f -> i", to=onnx.TensorProto.INT64),
        node("Concat front i -> s", axis=0),
        node("Resize x e e s -> y", mode="cubic", exclude_outside=1),
    ]
    made = model(nodes, {"x": f32[1, 2, "h", "w"], "f": f32[2]}, ["y"], opset=19,
                 initializers={"e": _vector(), "front": np.array([1, 2])})  # fmt: skip
    feeds = [{"x": _floats(1, 2, 5, 6), "f": _vector(h, w)} for h, w in ((9, 8), (5, 6), (3, 20))]
    assert_like_onnxruntime(made, *feeds, scale=16)
    with pytest.raises(BindError, match="bytes"):
        by_dovetail(made, {"x": _floats(1, 2, 5, 6), "f": _vector(2**40, 2**20)})


@pytest.mark.parametrize(
    "attributes", [{"antialias": 1, "mode": "linear"}, {"keep_aspect_ratio_policy": "not_larger"}], ids=str
)
def test_what_cannot_be_resampled_to_data_needs_it_when_it_is_compiled(attributes: dict[str, Any]) -> None:
    """The error names the input, and with its value the model is compiled."""
    nodes = [node("Resize x e e s -> y", axes=[2, 3], **attributes)]
    made = model(nodes, {"x": f32[1, 2, 5, 6], "s": i64[2]}, ["y"], opset=19, initializers={"e": _vector()})
    with pytest.raises(NeedsValueError, match="sizes of Resize decides the structure") as caught:
        import_model(made)
    assert caught.value.inputs == ("s",)
    assert import_model(made, fixed={"s": np.array([3, 4])}).outputs["y"].rank == 4


def test_corners_aligned_by_scales_need_them_when_they_are_compiled() -> None:
    nodes = [node("Resize x e s -> y", mode="linear", coordinate_transformation_mode="align_corners")]
    made = model(nodes, {"x": f32[1, 1, 4, 4], "s": f32[4]}, ["y"], opset=19, initializers={"e": _vector()})
    with pytest.raises(NeedsValueError, match="scales of Resize"):
        import_model(made)

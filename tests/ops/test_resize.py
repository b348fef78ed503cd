"""Resizing against numbers worked out by hand; the arithmetic stands beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import ops
from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import bf16, bool_, f16, f32, f64, i32
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ops.primitive import Primitive
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

Array = NDArray[Any]


def line(numbers: list[float], **attrs: Any) -> Array:
    """One axis resized."""
    value = ops.resize(leaf.input("x", f64[len(numbers)]), axes=(0,), **attrs)
    found = evaluate(Graph.of(value), {"x": np.array(numbers, np.float64)})["y"]
    assert value.shape == found.shape
    return found


def close(found: Array, expected: Any) -> None:
    assert_close(found, np.array(expected, np.float64), f64)


# Nearest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        # Places 0, 0.5, 1, 1.5, 2, 2.5: the halves tell the modes apart.
        ("round_prefer_floor", [10, 10, 20, 20, 30, 30]),
        ("round_prefer_ceil", [10, 20, 20, 30, 30, 30]),
        ("floor", [10, 10, 20, 20, 30, 30]),
        ("ceil", [10, 20, 20, 30, 30, 30]),
    ],
)
def test_rounding_of_halves(rounding: str, expected: list[float]) -> None:
    assert line([10, 20, 30], scales=(2.0,), coordinates="asymmetric", rounding=rounding).tolist() == expected


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        # Places 0, 0.75, 1.5, 2.25.
        ("round_prefer_floor", [10, 20, 20, 30]),
        ("round_prefer_ceil", [10, 20, 30, 30]),
        ("floor", [10, 10, 20, 30]),
        ("ceil", [10, 20, 30, 30]),
    ],
)
def test_rounding_of_quarters(rounding: str, expected: list[float]) -> None:
    assert line([10, 20, 30], sizes=(4,), coordinates="asymmetric", rounding=rounding).tolist() == expected


def test_nearest_half_pixel() -> None:
    # Places -0.25, 0.25, 0.75, 1.25.
    assert line([1, 2], scales=(2.0,)).tolist() == [1, 1, 2, 2]
    # Places 0.5, 2.5 halve to the left.
    assert line([1, 2, 3, 4], scales=(0.5,)).tolist() == [1, 3]
    # Places 1, 3, without the half that is taken off.
    assert line([1, 2, 3, 4], scales=(0.5,), coordinates="tf_half_pixel_for_nn", rounding="floor").tolist() == [2, 4]


def test_whole_places_stay_whole() -> None:
    # 10 * 14 / 20 is 7; dividing by the rounded quotient 20 / 14 may give a little less, and floor would take 6.
    for length, size in ((14, 20), (7, 10), (49, 70), (3, 9)):
        found = line(list(range(length)), sizes=(size,), coordinates="asymmetric", rounding="floor")
        assert found.tolist() == [place * length // size for place in range(size)]


def test_a_scale_that_was_rounded_decides_in_float32() -> None:
    tenths = [float(i) for i in range(10)]
    scale = float(np.float32(0.6))
    # Place 3 is 3 / 0.6 = 5 in float32, where 0.6 as it is stored would leave it below 5.
    found = line(tenths, scales=(scale,), coordinates="asymmetric", rounding="floor")
    close(found, [0, 1, 3, 5, 6, 8])


def test_nearest_moves_every_dtype() -> None:
    x = leaf.input("x", bool_[2])
    assert evaluate(Graph.of(ops.resize(x, axes=(0,), sizes=(3,))), {"x": np.array([True, False])})["y"].dtype == bool
    big = leaf.input("x", i32[1])
    number = np.array([2**31 - 1], np.int32)
    assert evaluate(Graph.of(ops.resize(big, axes=(0,), sizes=(2,))), {"x": number})["y"].tolist() == [2**31 - 1] * 2
    with pytest.raises(TypeRuleError, match="i32"):
        ops.resize(big, axes=(0,), sizes=(2,), mode="linear")


# Linear, and the ways to place the samples ------------------------------------------------------------------------


LINEAR: list[tuple[str, list[float], dict[str, Any], list[float]]] = [
    ("half_pixel", [1, 3], {"sizes": (4,)}, [1, 1.5, 2.5, 3]),
    # Place (0.5 / 0.25) - 0.5 = 1.5.
    ("half_pixel", [0, 1, 2, 3], {"sizes": (1,)}, [1.5]),
    ("pytorch_half_pixel", [0, 1, 2, 3], {"sizes": (1,)}, [0]),
    ("pytorch_half_pixel", [1, 3], {"sizes": (4,)}, [1, 1.5, 2.5, 3]),
    ("align_corners", [1, 3], {"sizes": (5,)}, [1, 1.5, 2, 2.5, 3]),
    ("align_corners", [5, 3], {"sizes": (1,)}, [5]),
    # The last place, 2.5, lies beyond the end.
    ("asymmetric", [0, 10, 20], {"sizes": (6,)}, [0, 5, 10, 15, 20, 20]),
    # 4 * 0.6 = 2.4 is cut to 2: places 1 / 3 and 2.
    ("half_pixel", [0, 3, 6, 9], {"scales": (0.6,)}, [1, 6]),
    # The same, moved by 2 - 1 / 0.6 = 1 / 3, so that both lie equally far from the middle.
    ("half_pixel_symmetric", [0, 3, 6, 9], {"scales": (0.6,)}, [2, 7]),
    # With the sizes alone the quotient is exact, and there is nothing to move.
    ("half_pixel_symmetric", [0, 3, 6, 9], {"sizes": (2,)}, [1.5, 7.5]),
    # A scale beside the sizes places the samples: 0, 1 / 0.6.
    ("asymmetric", [0, 3, 6, 9], {"sizes": (2,), "scales": (0.6,)}, [0, 5]),
    # Places 0.75, 1.5, 2.25 of 3.
    ("tf_crop_and_resize", [0, 10, 20, 30], {"sizes": (3,), "roi": (0.25, 0.75)}, [7.5, 15, 22.5]),
    ("tf_crop_and_resize", [0, 10, 20, 30], {"sizes": (1,), "roi": (0.25, 0.75)}, [15]),
    # 4 elements times half of them times 2.
    ("tf_crop_and_resize", [0, 10, 20, 30], {"scales": (2.0,), "roi": (0.0, 0.5)}, [0, 5, 10, 15]),
    # Places -1.5, 1.5, 4.5: what lies outside is said, not stretched.
    ("tf_crop_and_resize", [0, 10, 20, 30], {"sizes": (3,), "roi": (-0.5, 1.5), "extrapolation": -7.0}, [-7, 15, -7]),
    # A region may run backwards.
    ("tf_crop_and_resize", [0, 10, 20, 30], {"sizes": (2,), "roi": (1.0, 0.0)}, [30, 0]),
]


@pytest.mark.parametrize(("coordinates", "x", "attrs", "expected"), LINEAR)
def test_linear(coordinates: str, x: list[float], attrs: dict[str, Any], expected: list[float]) -> None:
    close(line(x, mode="linear", coordinates=coordinates, **attrs), expected)


def test_nearest_of_a_region() -> None:
    attrs = {"coordinates": "tf_crop_and_resize", "roi": (0.0, 2.0), "extrapolation": 9.0}
    # Places 0, 3, 6 of 3.
    assert line([1, 2, 3, 4], sizes=(3,), **attrs).tolist() == [1, 4, 9]


def test_what_has_no_weight_is_not_read() -> None:
    found = line([1, np.inf, 2, np.nan], sizes=(4,), mode="linear", coordinates="align_corners")
    assert found[:3].tolist() == [1, np.inf, 2] and np.isnan(found[3])


# Cubic ------------------------------------------------------------------------------------------------------------


def test_cubic_weights() -> None:
    # At distance 0.5 the weight is 1.25 / 8 - 2.25 / 4 + 1 = 0.59375, at 1.5 it is -0.75 / 8 = -0.09375.
    spike = line([0, 16, 0, 0], sizes=(7,), mode="cubic", coordinates="align_corners")
    close(spike, [0, 9.5, 16, 9.5, 0, -1.5, 0])
    # With a = -0.5: 1.5 / 8 - 2.5 / 4 + 1 = 0.5625 and -0.5 / 8 = -0.0625.
    spike = line([0, 16, 0, 0], sizes=(7,), mode="cubic", coordinates="align_corners", a=-0.5)
    close(spike, [0, 9, 16, 9, 0, -1, 0])


def test_cubic_beyond_the_ends() -> None:
    # The element in front of the first is the first once more: 16 * (0.59375 - 0.09375).
    repeated = line([16, 0, 0, 0], sizes=(7,), mode="cubic", coordinates="align_corners")
    close(repeated, [16, 8, 0, -1.5, 0, 0, 0])
    # Or it is left out, and the other weights are stretched to 1: 16 * 0.59375 / 1.09375.
    left_out = line([16, 0, 0, 0], sizes=(7,), mode="cubic", coordinates="align_corners", exclude_outside=True)
    close(left_out, [16, 9.5 / 1.09375, 0, -1.5, 0, 0, 0])


# Antialias --------------------------------------------------------------------------------------------------------


def test_antialias_widens_the_filter_when_it_shrinks() -> None:
    # Places 0.5 and 2.5; a triangle of reach 2 weighs 1, 3, 3, 1 eighths.
    both_ends = line([1, 2, 3, 4], scales=(0.5,), mode="linear", antialias=True)
    close(both_ends, [(1 + 3 * 1 + 3 * 2 + 3) / 8, (2 + 3 * 3 + 3 * 4 + 4) / 8])
    inside = line([1, 2, 3, 4], scales=(0.5,), mode="linear", antialias=True, exclude_outside=True)
    close(inside, [(3 * 1 + 3 * 2 + 3) / 7, (2 + 3 * 3 + 3 * 4) / 7])


def test_antialias_cubic() -> None:
    # Scale 1 / 2 at place 3.5: distances 0.25, 0.75, 1.25, 1.75 on either side.
    def weight(d: float, a: float = -0.75) -> float:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * (d**3 - 5 * d**2 + 8 * d - 4)

    weights = [weight(d) for d in (1.75, 1.25, 0.75, 0.25, 0.25, 0.75, 1.25, 1.75)]
    x = [3.0, 1, 4, 1, 5, 9, 2, 6]
    # Places are 0.5, 2.5, 4.5, 6.5; the third sees elements 1 to 8, the last of them repeated.
    seen = [*x[1:], x[-1]]
    expected = sum(w * v for w, v in zip(weights, seen, strict=True)) / sum(weights)
    found = line(x, scales=(0.5,), mode="cubic", antialias=True)
    close(found[2:3], [expected])


def test_antialias_changes_nothing_when_it_grows() -> None:
    plain = line([1, 5, 2], sizes=(7,), mode="linear")
    close(line([1, 5, 2], sizes=(7,), mode="linear", antialias=True), plain.tolist())


# Several axes, sizes, types ---------------------------------------------------------------------------------------


def test_axes_one_after_the_other() -> None:
    x = np.array([[1.0, 3.0], [5.0, 7.0]])
    value = ops.resize(leaf.input("x", f64[1, 2, 2]), axes=(1, 2), sizes=(3, 4), mode="linear")
    assert value.attrs["axes"] == (-2, -1)
    found = evaluate(Graph.of(value), {"x": x[None]})["y"][0]
    rows = np.array([x[0], (x[0] + x[1]) / 2, x[1]])
    a, b = rows[:, :1], rows[:, 1:]
    close(found, np.concatenate([a, 0.75 * a + 0.25 * b, 0.25 * a + 0.75 * b, b], axis=1).tolist())


def test_extrapolation_covers_whole_rows() -> None:
    x = np.arange(4.0).reshape(2, 2)
    value = ops.resize(
        leaf.input("x", f64[2, 2]),
        axes=(0, 1),
        sizes=(2, 2),
        mode="cubic",
        coordinates="tf_crop_and_resize",
        roi=(0.0, 0.0, 2.0, 1.0),
        extrapolation=100.0,
    )
    close(evaluate(Graph.of(value), {"x": x})["y"], [[0, 1], [100, 100]])


SIZES: list[tuple[Size, float, Size]] = [
    (5, 2.0, 10),
    (4, 0.6, 2),
    (3, 1 / 3, 1),
    (10, float(np.float32(0.7)), 7),
    (100_000, 2.00001, 200_001),
    (symbol("s"), 2.0, symbol("s") * 2),
    (symbol("s"), 0.5, symbol("s") // 2),
    (symbol("s"), 1.5, (symbol("s") * 3) // 2),
]


@pytest.mark.parametrize(("size", "scale", "expected"), SIZES)
def test_size_from_a_scale(size: Size, scale: float, expected: Size) -> None:
    assert ops.resize(leaf.input("x", TensorType(f32, (size,))), axes=(0,), scales=(scale,)).shape == (expected,)


def test_symbolic_sizes() -> None:
    s = symbol("s")
    x = leaf.input("x", TensorType(f32, (s,)))
    value = ops.resize(x, axes=(0,), sizes=(s * 2 - 1,), mode="linear", coordinates="align_corners")
    for count in (1, 2, 4):
        given = np.arange(count, dtype=np.float32)
        assert evaluate(Graph.of(value), {"x": given})["y"].tolist() == [i / 2 for i in range(2 * count - 1)]
    with pytest.raises(BindError, match="at least"):
        evaluate(Graph.of(value), {"x": np.zeros(0, np.float32)})


@pytest.mark.parametrize("dtype", [f16, bf16, f32])
def test_floats_in_their_own_type(dtype: Any) -> None:
    value = ops.resize(leaf.input("x", dtype[2]), axes=(0,), sizes=(4,), mode="linear")
    found = evaluate(Graph.of(value), {"x": np.array([1, 3], dtype.numpy)})["y"]
    assert_close(found, np.array([1, 1.5, 2.5, 3]), dtype)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"axes": (0,)}, "to nothing"),
    ({"axes": (0,), "sizes": (1, 2)}, "sizes has 2"),
    ({"axes": (0, 1), "scales": (1.0,)}, "scales has 1"),
    ({"axes": (1, 0), "sizes": (1, 2)}, "axes"),
    ({"axes": (0, 0), "sizes": (1, 2)}, "axes"),
    ({"axes": (), "sizes": ()}, "axes"),
    ({"axes": (2,), "sizes": (1,)}, "axis 2"),
    ({"axes": (0,), "scales": (0.0,)}, "scales"),
    ({"axes": (0,), "sizes": (-1,)}, "size"),
    ({"axes": (0,), "sizes": (3,), "antialias": True}, "antialias"),
    ({"axes": (0,), "sizes": (3,), "roi": (0.0, 1.0)}, "roi"),
    ({"axes": (0,), "sizes": (3,), "coordinates": "tf_crop_and_resize"}, "roi"),
    ({"axes": (0,), "sizes": (3,), "mode": "quintic"}, "quintic"),
]


@pytest.mark.parametrize(("attrs", "said"), REFUSED)
def test_what_resize_does_not_take(attrs: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeRuleError, match=said) as caught:
        ops.resize(leaf.input("x", f32[2, 2]), **attrs)
    assert caught.value.hint


def test_flops() -> None:
    for mode, taps in (("nearest", 0), ("linear", 2), ("cubic", 4)):
        value = ops.resize(leaf.input("x", f32[2, 2]), axes=(0, 1), sizes=(3, 5), mode=mode)
        assert isinstance(value.op, Primitive)
        assert value.op.flops(value.type, (f32[2, 2],), value.attrs) == 15 * 2 * taps * 2

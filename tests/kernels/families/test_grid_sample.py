"""Grid sampling by its kernel, against its meaning in float64."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Graph, ops
from dovetail.dtypes import f16, f32, f64
from dovetail.ir.dtype import DType
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from tests.kernels.native import check

MODES = ["nearest", "linear", "cubic"]
PADDINGS = ["zeros", "border", "reflection"]


def feeds(batch: int, channels: int, image: tuple[int, ...], places: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """An image and a grid that goes beyond it on every side; nothing near a tie of two pixels but exact ones."""
    rng = np.random.default_rng(batch + channels + sum(image) + sum(places))
    x = rng.normal(size=(batch, channels, *image)).astype(dtype)
    grid = rng.uniform(-2.5, 2.5, size=(batch, *places, len(image))).astype(dtype)
    return {"x": x, "grid": grid}


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("image", [(7,), (5, 9), (1, 6), (3, 4, 5)])
def test_every_mode(mode: Any, padding: Any, align_corners: bool, image: tuple[int, ...]) -> None:
    places = (*(2, 3)[: len(image) - 1], 11)
    fed = feeds(2, 3, image, places)
    x, grid = input("x", f32[2, 3, *image]), input("grid", f32[2, *places, len(image)])
    sampled = ops.grid_sample(x, grid, mode=mode, padding=padding, align_corners=align_corners)
    check(Graph.of(sampled), fed, kernel="grid_sample")


@pytest.mark.exhaustive
@given(
    st.sampled_from(MODES),
    st.sampled_from(PADDINGS),
    st.booleans(),
    st.integers(0, 2),
    st.integers(0, 5),
    st.tuples(*[st.integers(1, 9)] * 2),
    st.tuples(*[st.integers(0, 150)] * 2),
)
def test_one_code_for_every_size(
    mode: Any, padding: Any, align: bool, n: int, c: int, image: tuple[int, int], places: tuple[int, int]
) -> None:
    x, grid = input("x", f32["n", "c", "h", "w"]), input("grid", f32["n", "p", "q", 2])
    sampled = ops.grid_sample(x, grid, mode=mode, padding=padding, align_corners=align)
    check(Graph.of(sampled), feeds(n, c, image, places), kernel="grid_sample")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, f64])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_dtypes(dtype: DType, mode: Literal["linear", "cubic"]) -> None:
    x, grid = input("x", dtype[2, 5, 6, 7]), input("grid", dtype[2, 4, 300, 2])
    check(
        Graph.of(ops.grid_sample(x, grid, mode=mode)), feeds(2, 5, (6, 7), (4, 300), dtype.numpy), kernel="grid_sample"
    )


@pytest.mark.slow
def test_strided_operands() -> None:
    x = ops.permute(input("x", f32[2, 6, 7, 5]), order=(-4, -1, -3, -2))
    grid = ops.permute(input("grid", f32[2, 2, 4, 9]), order=(-4, -2, -1, -3))
    fed = {
        "x": feeds(2, 6, (7, 5), (1, 1))["x"],
        "grid": np.moveaxis(feeds(2, 1, (1, 1), (4, 9))["grid"], -1, 1).copy(),
    }
    check(Graph.of(ops.grid_sample(x, grid, padding="border")), fed, kernel="grid_sample")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
def test_coordinates_that_are_no_numbers(mode: Any, padding: Any) -> None:
    """At NaN the result is NaN; infinite pixels outside of the taps do not count."""
    x: Array = np.ones((1, 1, 3, 3), np.float32)
    x[0, 0, 0, 0] = np.inf
    grid: Array = np.array([[np.nan, 0], [0, np.nan], [0.9, 0.9], [5, 5]], np.float32).reshape((1, 1, 4, 2))
    sampled = ops.grid_sample(input("x", f32[1, 1, 3, 3]), input("grid", f32[1, 1, 4, 2]), mode=mode, padding=padding)
    check(Graph.of(sampled), {"x": x, "grid": grid}, kernel="grid_sample")

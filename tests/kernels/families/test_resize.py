"""Resizing by its kernel, against its meaning in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.dtype import i32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph
from tests.kernels.native import check

COORDINATES = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "tf_half_pixel_for_nn",
]


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def enlarged(**attrs: Any) -> Graph:
    return Graph.of(ops.resize(input("x", f32[2, 3, 7, 10]), axes=(-2, -1), **attrs))


@pytest.mark.slow
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(coordinates: str, rounding: str) -> None:
    x = {"x": normal(2, 3, 7, 10)}
    for scale in ({"sizes": (11, 1)}, {"scales": (2.0, 0.6)}, {"sizes": (15, 23), "scales": (2.2, 2.3)}):
        check(enlarged(coordinates=coordinates, rounding=rounding, **scale), x)


@pytest.mark.slow
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_linear(coordinates: str) -> None:
    x = {"x": normal(2, 3, 7, 10)}
    for scale in ({"sizes": (11, 1)}, {"scales": (2.0, 0.6)}, {"sizes": (15, 23), "scales": (2.2, 2.3)}):
        check(enlarged(coordinates=coordinates, mode="linear", **scale), x)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_one_code_for_every_size(mode: Any) -> None:
    graph = Graph.of(ops.resize(input("x", f32["n", 2, "h", "w"]), axes=(-2, -1), scales=(2.0, 2.0), mode=mode))
    check(graph, *({"x": normal(n, 2, h, w)} for n, h, w in [(1, 1, 1), (2, 9, 33), (0, 3, 3), (1, 40, 17)]))


@pytest.mark.parametrize("axes", [(-1,), (-2,), (-4, -2), (-3, -2, -1)])
def test_every_axis_and_strides(axes: tuple[int, ...]) -> None:
    x = ops.permute(input("x", f32[3, 4, 5, 6]), order=(-4, -1, -3, -2))
    for mode in ("nearest", "linear"):
        check(Graph.of(ops.resize(x, axes=axes, sizes=(7,) * len(axes), mode=mode)), {"x": normal(3, 4, 5, 6)})


def test_whole_numbers() -> None:
    x = input("x", i32[1, 1, 3, 4])
    graph = Graph.of(ops.resize(x, axes=(-2, -1), sizes=(6, 5)))
    check(graph, {"x": np.arange(12, dtype=np.int32).reshape((1, 1, 3, 4))})


def test_infinity_counts_where_it_has_weight() -> None:
    x = normal(1, 1, 2, 4)
    x[0, 0, 0, 1] = np.inf
    graph = Graph.of(ops.resize(input("x", f32[1, 1, 2, 4]), axes=(-2, -1), scales=(2.0, 2.0), mode="linear",
                                coordinates="asymmetric"))  # fmt: skip
    got = check(graph, {"x": x})
    assert not np.isnan(got).any()


def test_the_rest_stays_on_the_host() -> None:
    found = NativeGraph(make_plan(enlarged(sizes=(9, 9), mode="cubic"), target=CPU))
    assert [s.value.op.name for s in found.on_host] == ["resize"]

"""Pools by their kernels, against their meaning in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu import backend
from tests.kernels.native import check

POOLS = [ops.max_pool, ops.average_pool]


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    "attrs",
    [
        {"window": (2, 2), "strides": (2, 2)},
        {"window": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
        {"window": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "ceil": True},
        {"window": (5, 5), "padding": (2, 2, 2, 2)},
        {"window": (3, 2), "strides": (3, 1), "padding": (0, 1, 1, 0), "ceil": True},
        {"window": (2, 3), "dilations": (3, 2), "strides": (1, 2), "padding": (1, 2, 0, 3)},
        {"window": (14, 17)},
    ],
)
def test_every_window(pool: Any, attrs: dict[str, Any]) -> None:
    check(Graph.of(pool(input("x", f32[2, 3, 14, 17]), **attrs)), {"x": normal(2, 3, 14, 17)})


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("dilation", [1, 2])
def test_averages_over_the_padding(ceil: bool, dilation: int) -> None:
    x = input("x", f32[1, 2, 12, 16])
    attrs: dict[str, Any] = {"window": (3, 3), "strides": (2, 3), "padding": (1, 2, 2, 0), "ceil": ceil}
    graph = Graph.of(ops.average_pool(x, **attrs, dilations=(dilation, dilation), count_padding=True))
    check(graph, {"x": normal(1, 2, 12, 16)})


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 15, 16, 17, 31, 33, 100])
def test_every_size(pool: Any, size: int) -> None:
    graph = Graph.of(pool(input("x", f32[1, 3, size, size]), window=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))
    check(graph, {"x": normal(1, 3, size, size)})


@pytest.mark.parametrize("pool", POOLS)
def test_one_code_for_every_size(pool: Any) -> None:
    x = input("x", f32["n", "c", "h", "w"])
    shapes = [(1, 1, 1, 1), (2, 3, 9, 33), (1, 2, 5, 900), (1, 1, 200, 3), (0, 2, 4, 4)]
    graph = Graph.of(pool(x, window=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))
    check(graph, *({"x": normal(*shape)} for shape in shapes))


@pytest.mark.parametrize("pool", POOLS)
def test_one_axis(pool: Any) -> None:
    check(Graph.of(pool(input("x", f32[2, 3, 50]), window=(4,), strides=(3,), padding=(1, 2))), {"x": normal(2, 3, 50)})


@pytest.mark.parametrize("pool", POOLS)
def test_views_are_read_where_they_lie(pool: Any) -> None:
    x = input("x", f32[2, 6, 12, 10])
    for view in (
        ops.permute(x, order=(-4, -1, -3, -2)),
        ops.flip(x, axes=(-1,)),
        ops.slice_(x, axis=-1, start=0, stop=10, step=3),
    ):
        check(Graph.of(pool(view, window=(2, 3), strides=(1, 2))), {"x": normal(2, 6, 12, 10)})


def test_nan_wins_and_padding_does_not() -> None:
    x = -np.abs(normal(1, 1, 6, 40)) - 1
    x[0, 0, 3, 20], x[0, 0, 0, 0] = np.nan, -np.inf
    graph = Graph.of(ops.max_pool(input("x", f32[1, 1, 6, 40]), window=(3, 3), padding=(1, 1, 1, 1)))
    (got,) = check(graph, {"x": x})
    assert np.isnan(got[0, 0, 2:5, 19:22]).all()
    assert np.isnan(got).sum() == 9
    assert (got[~np.isnan(got)] < 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "registers"), [(4, 16), (8, 16)])
def test_other_machines(monkeypatch: pytest.MonkeyPatch, lanes: int, registers: int) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: CpuDevice(32 * lanes, registers))
    for pool in POOLS:
        graph = Graph.of(pool(input("x", f32[1, 3, 13, 21]), window=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))
        check(graph, {"x": normal(1, 3, 13, 21)})

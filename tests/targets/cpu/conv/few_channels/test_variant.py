"""Convolution of few channels by a large window, against its meaning in float64."""

from __future__ import annotations

from functools import partial

import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import CpuDevice
from tests.kernels.convolving import (
    OTHER_MACHINES,
    WIDE,
    Window,
    checked,
    network,
    normal,
    on_a_machine_of,
    params_of,
    same_by_threads,
    served,
    serves,
)

compiled = partial(served, "row_conv")
check = partial(checked, "row_conv")


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [
        Window((7, 7), (2, 2), (1, 1), (3, 3, 3, 3)),
        Window((7, 7), (2, 2), (1, 1), (3, 2, 1, 0)),
        Window((6, 7), (1, 1), (1, 1), (0, 3, 0, 3)),
        Window((7, 6), (1, 3), (2, 1), (4, 5, 4, 5)),
    ],
)
def test_every_window(window: Window) -> None:
    check(window.over((2, 3, 61, 92), 32), {"x": normal(2, 3, 61, 92)})


@pytest.mark.slow
@pytest.mark.parametrize("filters", [30, 48, 61, 64])
@pytest.mark.parametrize("width", [18, 21, 35])
def test_every_number_of_filters(filters: int, width: int) -> None:
    check(network((1, 5, 62, width), (filters, 5, 5, 5), bias=False), {"x": normal(1, 5, 62, width)})


@pytest.mark.slow
def test_sizes_that_come_late() -> None:
    graph = network(("n", 3, "h", "w"), (64, 3, 7, 7), strides=(2, 2), padding=(3, 3, 3, 3), act="relu")
    check(graph, *({"x": normal(n, 3, h, w)} for n, h, w in [(1, 64, 64), (2, 70, 91), (0, 64, 64), (1, 9, 8)]))


def test_views_are_read_where_they_lie() -> None:
    x = ops.permute(input("x", f32[1, 40, 41, 4]), order=(-4, -1, -3, -2))
    check(Graph.of(ops.conv(x, param("w", f32[32, 4, 6, 5]))), {"x": normal(1, 40, 41, 4)})


@pytest.mark.slow
def test_threads_do_not_change_a_bit() -> None:
    graph = network((1, 3, 80, 70), (64, 3, 7, 7), strides=(2, 2), padding=(3, 3, 3, 3))
    same_by_threads(partial(compiled, graph, params_of(graph), WIDE), {"x": normal(1, 3, 80, 70)})


def test_it_serves_only_where_it_wins() -> None:
    for shape, weights in [
        ((1, 3, 224, 224), (64, 3, 3, 3)),
        ((1, 3, 24, 24), (64, 3, 7, 7)),
        ((1, 3, 224, 12), (64, 3, 7, 7)),
        ((1, 3, 224, 224), (40, 3, 7, 7)),
        ((1, 9, 224, 224), (64, 9, 7, 7)),
        ((1, 128, 56, 56), (32, 128, 1, 1)),
    ]:
        assert not serves("row_conv", network(shape, weights))


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    graph = network((1, 3, 62, 66), (32, 3, 7, 7), strides=(2, 2), padding=(3, 3, 3, 3), act="relu")
    check(graph, {"x": normal(1, 3, 62, 66)}, vectors=vectors)

"""Convolution over few places by a window with many products, against its meaning in float64."""

from __future__ import annotations

from functools import partial

import pytest

from dovetail import Graph, library
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import CpuDevice
from tests.kernels.convolving import (
    OTHER_MACHINES,
    WIDE,
    Window,
    checked,
    checked_from_the_side,
    network,
    normal,
    on_a_machine_of,
    params_of,
    same_by_threads,
    served,
)

compiled = partial(served, "window_conv")
check = partial(checked, "window_conv")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 7), (13, 1), (14, 15)])
def test_every_size(size: tuple[int, int]) -> None:
    x = (2, 230, 2 * size[0], 2 * size[1])
    check(network(x, (32, 230, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1)), {"x": normal(*x)})


@pytest.mark.slow
@pytest.mark.parametrize("filters", [30, 48, 61])
def test_every_number_of_filters(filters: int) -> None:
    check(network((1, 230, 7, 6), (filters, 230, 3, 3), bias=False, act="relu"), {"x": normal(1, 230, 7, 6)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [
        Window((3, 5), (2, 1), (1, 1), (0, 2, 1, 0)),
        Window((3, 5), (1, 1), (2, 3), (2, 3, 2, 3)),
        Window((4, 4), (3, 2), (2, 2), (1, 0, 4, 2)),
        Window((2, 9), (1, 4), (1, 1), (1, 4, 0, 4)),
    ],
)
def test_every_window(window: Window) -> None:
    check(window.over((2, 140, 9, 11), 32), {"x": normal(2, 140, 9, 11)})


@pytest.mark.slow
def test_groups_residuals_and_one_axis() -> None:
    check(network((1, 460, 5, 5), (64, 230, 3, 3), groups=2, padding=(1, 1, 1, 1)), {"x": normal(1, 460, 5, 5)})
    check(network((2, 410, 50), (32, 410, 5), padding=(2, 2), strides=(2,)), {"x": normal(2, 410, 50)})
    x, r = input("x", f32[1, 230, 5, 5]), input("r", f32[1, 32, 5, 5])
    w, b = param("w", f32[32, 230, 3, 3]), param("b", f32[32, 1, 1])
    graph = Graph.of(library.conv_bias_act(x, w, b, r, act="gelu", padding=(1, 1, 1, 1)))
    check(graph, {"x": normal(1, 230, 5, 5), "r": normal(1, 32, 5, 5)})


@pytest.mark.slow
def test_sizes_that_come_late() -> None:
    graph = network(("n", 230, "h", "w"), (32, 230, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    check(graph, *({"x": normal(n, 230, h, w)} for n, h, w in [(1, 14, 14), (2, 9, 30), (0, 7, 7), (1, 1, 1)]))


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 1])
def test_views_are_read_where_they_lie(padding: int) -> None:
    checked_from_the_side(check, (1, 9, 10, 230), (32, 230, 5, 2), padding)


@pytest.mark.slow
def test_threads_do_not_change_a_bit() -> None:
    graph = network((1, 230, 14, 14), (64, 230, 3, 5), padding=(1, 2, 1, 2))
    same_by_threads(partial(compiled, graph, params_of(graph), WIDE), {"x": normal(1, 230, 14, 14)})


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    graph = network((1, 230, 7, 9), (32, 230, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1), act="relu")
    check(graph, {"x": normal(1, 230, 7, 9)}, vectors=vectors)

"""Convolution over few places by its kernel, against its meaning in float64."""

from __future__ import annotations

from functools import partial
from typing import get_args

import pytest

from dovetail.kernels.device import CpuDevice
from dovetail.library.activation import Activation
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

compiled = partial(served, "small_conv")
check = partial(checked, "small_conv")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 13])
@pytest.mark.parametrize("window", [1, 3])
def test_every_size(size: int, window: int) -> None:
    # Windows of 3 by 3 have a scheme of their own, and so has one pixel with nothing around the image.
    graph = network((2, 202, size, size), (64, 202, window, 1), padding=(1, 0, 1, 0))
    check(graph, {"x": normal(2, 202, size, size)})


@pytest.mark.parametrize("filters", [61, 64, 125, 128])
@pytest.mark.parametrize("channels", [15, 16, 17, 70])
def test_every_number_of_filters(filters: int, channels: int) -> None:
    check(network((1, channels, 8, 8), (filters, channels, 3, 3), bias=False), {"x": normal(1, channels, 8, 8)})


@pytest.mark.parametrize(
    "window",
    [
        Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
        Window((3, 5), (2, 1), (1, 1), (0, 2, 1, 0)),
        Window((3, 4), (1, 1), (2, 3), (2, 3, 2, 3)),
        Window((2, 4), (3, 2), (2, 2), (1, 0, 4, 2)),
        Window((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
        Window((1, 1), (1, 1), (1, 1), (1, 2, 0, 1)),
    ],
)
def test_every_window(window: Window) -> None:
    check(window.over((2, 128, 9, 11), 64), {"x": normal(2, 128, 9, 11)})


@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation(act: Activation) -> None:
    check(network((1, 128, 2, 11), (64, 128, 1, 1), act=act), {"x": normal(1, 128, 2, 11)})


@pytest.mark.slow
def test_groups_and_one_axis() -> None:
    check(network((1, 64, 9, 9), (128, 32, 3, 3), groups=2, padding=(1, 1, 1, 1)), {"x": normal(1, 64, 9, 9)})
    check(network((2, 64, 50), (64, 64, 5), padding=(2, 2), strides=(2,)), {"x": normal(2, 64, 50)})


def test_any_number_of_images() -> None:
    graph = network(("n", 64, 7, 7), (64, 64, 3, 3), padding=(1, 1, 1, 1))
    check(graph, *({"x": normal(count, 64, 7, 7)} for count in (0, 1, 3)))


@pytest.mark.parametrize("padding", [0, 1])
def test_views_are_read_where_they_lie(padding: int) -> None:
    checked_from_the_side(check, (1, 9, 10, 64), (64, 64, 3, 2), padding)


def test_threads_do_not_change_a_bit() -> None:
    graph = network((1, 100, 14, 14), (128, 100, 3, 5), padding=(1, 2, 1, 2))
    same_by_threads(partial(compiled, graph, params_of(graph), WIDE), {"x": normal(1, 100, 14, 14)})


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    graph = network((1, 40, 9, 7), (64, 40, 3, 3), padding=(1, 1, 1, 1), act="relu")
    check(graph, {"x": normal(1, 40, 9, 7)}, vectors=vectors)

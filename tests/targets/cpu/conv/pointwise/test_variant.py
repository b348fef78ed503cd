"""Convolution by a window of one pixel by its kernel, against its meaning in float64."""

from __future__ import annotations

from functools import partial
from typing import get_args

import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import CpuDevice
from dovetail.library.activation import Activation
from tests.kernels.convolving import (
    OTHER_MACHINES,
    WIDE,
    checked,
    checked_with_what_is_no_number,
    normal,
    on_a_machine_of,
    params_of,
    pixel,
    same_by_threads,
    served,
    serves,
)

compiled = partial(served, "point_conv")
check = partial(checked, "point_conv")
is_point = partial(serves, "point_conv")


@pytest.mark.parametrize(
    ("height", "width"), [(5, 13), (8, 10), (9, 9), (10, 10), (12, 16), (7, 33), (20, 50), (1, 99)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_every_size(height: int, width: int, bias: bool) -> None:
    check(pixel((2, 50, height, width), 30, bias), {"x": normal(2, 50, height, width)})


@pytest.mark.slow
@pytest.mark.parametrize("filters", [1, 7, 8, 9, 64, 129])
@pytest.mark.parametrize("channels", [48, 127, 128, 129, 300])
def test_every_number_of_filters(filters: int, channels: int) -> None:
    check(pixel((1, channels, 14, 15), filters), {"x": normal(1, channels, 14, 15)})


@pytest.mark.slow
@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation(act: Activation) -> None:
    check(pixel((1, 64, 11, 9), 12, act=act), {"x": normal(1, 64, 11, 9)})


def test_groups_and_one_axis() -> None:
    check(pixel((2, 150, 10, 11), 27, groups=3), {"x": normal(2, 150, 10, 11)})
    check(pixel((1, 64, 1000), 24), {"x": normal(1, 64, 1000)})


@pytest.mark.slow
def test_many_places() -> None:
    check(pixel((1, 130, 40, 41), 20), {"x": normal(1, 130, 40, 41)})


@pytest.mark.slow
def test_one_program_for_every_size() -> None:
    graph = pixel(("n", 64, "h", "w"), 40, act="silu")
    check(
        graph, *({"x": normal(n, 64, h, w)} for n, h, w in ((1, 9, 9), (3, 10, 16), (0, 9, 9), (1, 31, 7), (1, 2, 3)))
    )


def test_it_serves_many_places_where_filters_are_fewer() -> None:
    assert is_point(pixel((1, 64, 56, 56), 32)) and is_point(pixel((1, 128, 56, 56), 32))
    assert not is_point(pixel((1, 64, 56, 56), 64)), "too many rows are written in turn"


def test_fewer_channels_do_beside_a_residual() -> None:
    beside = input("r", f32[1, 128, 56, 56])
    assert is_point(pixel((1, 32, 56, 56), 128, residual=beside))
    assert not is_point(pixel((1, 32, 56, 56), 128)), "results are written too fast"


def test_rows_that_lie_apart_are_read_where_they_lie() -> None:
    x = input("x", f32[1, 9, 64, 16])
    y = ops.conv(ops.permute(x, order=(-4, -2, -3, -1)), param("w", f32[24, 64, 1, 1]))
    assert not is_point(Graph.of(y)), "rows do not follow each other"
    x = input("x", f32[3, 100, 9, 12])
    part = ops.slice_(x, axis=-3, start=20, stop=84)
    check(Graph.of(ops.conv(part, param("w", f32[24, 64, 1, 1]))), {"x": normal(3, 100, 9, 12)})


def test_what_is_not_finite_goes_where_it_is_seen() -> None:
    graph = pixel((1, 64, 9, 9), 16)
    checked_with_what_is_no_number(compiled(graph, params_of(graph)), normal(1, 64, 9, 9), (4, 5), (8, 8))


def test_threads_do_not_change_a_bit() -> None:
    graph = pixel((1, 200, 14, 14), 100)
    same_by_threads(partial(compiled, graph, params_of(graph), WIDE), {"x": normal(1, 200, 14, 14)})


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    check(pixel((1, 50, 9, 7), 21, act="relu"), {"x": normal(1, 50, 9, 7)}, vectors=vectors)

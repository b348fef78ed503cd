"""Convolution over few places by its kernel, against its meaning in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import pytest

from dovetail import Graph, f32, ops
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.vector import Vectors
from dovetail.library.activation import Activation
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from tests.kernels.convolving import (
    OTHER_MACHINES,
    WIDE,
    compared,
    kernels_of,
    network,
    normal,
    on_a_machine_of,
    params_of,
    same_by_threads,
)


def compiled(graph: Graph, params: Mapping[str, Array], vectors: Vectors, threads: int | None = None) -> NativeRunner:
    first, *_ = kernels_of(graph, vectors)
    assert first.startswith("small_conv"), "another kernel serves it"
    return NativeGraph(make_plan(graph, target="cpu"), threads=threads).bind(params)


def check(graph: Graph, *feeds: Mapping[str, Array], vectors: Vectors = WIDE) -> Array:
    """What the kernel gives, after it was compared."""
    params = params_of(graph)
    return compared(compiled(graph, params, vectors), params, *feeds)


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
    ("window", "strides", "dilations", "padding"),
    [
        ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
        ((3, 5), (2, 1), (1, 1), (0, 2, 1, 0)),
        ((3, 3), (1, 1), (2, 3), (2, 3, 2, 3)),
        ((2, 4), (3, 2), (2, 2), (1, 0, 4, 2)),
        ((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
        ((1, 1), (1, 1), (1, 1), (1, 2, 0, 1)),
    ],
)
def test_every_window(
    window: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], padding: tuple[int, ...]
) -> None:
    graph = network((2, 128, 9, 11), (64, 128, *window), strides=strides, dilations=dilations, padding=padding)
    check(graph, {"x": normal(2, 128, 9, 11)})


@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation(act: Activation) -> None:
    check(network((1, 128, 2, 11), (64, 128, 1, 1), act=act), {"x": normal(1, 128, 2, 11)})


def test_groups_and_one_axis() -> None:
    check(network((1, 64, 9, 9), (128, 32, 3, 3), groups=2, padding=(1, 1, 1, 1)), {"x": normal(1, 64, 9, 9)})
    check(network((2, 64, 50), (64, 64, 5), padding=(2, 2), strides=(2,)), {"x": normal(2, 64, 50)})


def test_any_number_of_images() -> None:
    graph = network(("n", 64, 7, 7), (64, 64, 3, 3), padding=(1, 1, 1, 1))
    check(graph, *({"x": normal(count, 64, 7, 7)} for count in (0, 1, 3)))


@pytest.mark.parametrize("padding", [0, 1])
def test_views_are_read_where_they_lie(padding: int) -> None:
    x = input("x", f32[1, 9, 10, 64])
    for view in (ops.permute(x, order=(-4, -1, -3, -2)), ops.flip(ops.permute(x, order=(-4, -1, -2, -3)), axes=(-1,))):
        y = ops.conv(view, param("w", f32[64, 64, 3, 2]), padding=(padding,) * 4)
        check(Graph.of(y), {"x": normal(1, 9, 10, 64)})


def test_threads_do_not_change_a_bit() -> None:
    graph = network((1, 100, 14, 14), (128, 100, 3, 5), padding=(1, 2, 1, 2))
    params, feeds = params_of(graph), {"x": normal(1, 100, 14, 14)}
    same_by_threads(lambda threads: compiled(graph, params, WIDE, threads), feeds)


@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: Vectors) -> None:
    on_a_machine_of(vectors, monkeypatch)
    graph = network((1, 40, 9, 7), (64, 40, 3, 3), padding=(1, 1, 1, 1), act="relu")
    check(graph, {"x": normal(1, 40, 9, 7)}, vectors=vectors)

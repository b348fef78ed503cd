"""Winograd's narrower scheme, which serves few places, against the meaning of a convolution in float64."""

from __future__ import annotations

from functools import partial
from typing import get_args

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import CpuDevice
from dovetail.library.activation import Activation
from dovetail.targets.cpu.conv.winograd.scheme import TWO
from dovetail.targets.cpu.conv.winograd.variant import TransformedWeights
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.convolving import (
    OTHER_MACHINES,
    WIDE,
    around,
    checked,
    kernels_of,
    normal,
    on_a_machine_of,
    params_of,
    same_by_threads,
    served,
    serves,
)

compiled = partial(served, "winograd_2")
check = partial(checked, "winograd_2")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(9, 9), (10, 10), (11, 13), (14, 14), (15, 15), (2, 45), (40, 2), (20, 20)])
def test_every_size(size: tuple[int, int]) -> None:
    check(around((1, 64, *size), 64), {"x": normal(1, 64, *size)})


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "filters"), [(64, 61), (65, 128), (100, 120), (130, 126)])
def test_every_number_of_channels(channels: int, filters: int) -> None:
    check(around((2, channels, 10, 11), filters, bias=False), {"x": normal(2, channels, 10, 11)})


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 2, 3), (2, 2, 2, 2)])
def test_every_padding(padding: tuple[int, ...]) -> None:
    check(around((1, 64, 12, 11), 64, padding=padding), {"x": normal(1, 64, 12, 11)})


@pytest.mark.slow
@pytest.mark.parametrize("act", get_args(Activation))
@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
def test_every_epilogue(act: Activation, residual: bool) -> None:
    graph = around((2, 64, 11, 9), 64, act=act)
    feeds = {"x": normal(2, 64, 11, 9)}
    if residual:
        x, w, b = graph.outputs["y"].operands
        r = input("r", f32[2, 64, 11, 9])
        graph = Graph.of(library.conv_bias_act(x, w, b, r, act=act, padding=(1, 1, 1, 1)))
        feeds["r"] = normal(2, 64, 11, 9)
    check(graph, feeds)


@pytest.mark.slow
def test_one_code_for_every_size() -> None:
    shapes = [(1, 1, 1), (2, 9, 13), (1, 14, 14), (0, 10, 10), (1, 40, 30)]
    check(around(("n", 64, "h", "w"), 64), *({"x": normal(n, 64, h, w)} for n, h, w in shapes))


def test_views_are_read_where_they_lie() -> None:
    x = ops.permute(input("x", f32[1, 12, 14, 64]), order=(-4, -1, -3, -2))
    w = param("w", f32[64, 64, 3, 3])
    check(Graph.of(ops.conv(x, w, padding=(1, 1, 1, 1))), {"x": normal(1, 12, 14, 64)})


@pytest.mark.slow
def test_many_channels_lose_little() -> None:
    graph = around((1, 512, 14, 14), 64)
    params, feeds = params_of(graph), {"x": normal(1, 512, 14, 14)}
    (got,) = compiled(graph, params, WIDE).run(feeds).values()
    (expected,) = evaluate(graph, feeds, params=params, lift=True).values()
    assert np.abs(got - expected).max() < 5e-6


@pytest.mark.slow
def test_threads_do_not_change_a_bit() -> None:
    graph = around((2, 70, 13, 14), 256)
    same_by_threads(partial(compiled, graph, params_of(graph), WIDE), {"x": normal(2, 70, 13, 14)})


def test_strict_programs_sum_in_the_plain_way() -> None:
    graph = around((1, 64, 14, 14), 64)
    assert kernels_of(graph) == ["winograd_2"]
    assert kernels_of(graph, strict=True) == ["small_conv"]


def test_it_serves_only_where_it_wins() -> None:
    for graph in [
        around((1, 32, 14, 14), 64),
        around((1, 64, 14, 14), 40),
        around((1, 64, 7, 7), 64),
        around((1, 64, 28, 28), 64),
        around((1, 64, 14, 14), 64, strides=(2, 2)),
    ]:
        assert not serves("winograd_2", graph)


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    check(around((1, 64, 11, 10), 64, act="relu"), {"x": normal(1, 64, 11, 10)}, vectors=vectors)


def test_weights_are_laid_out_by_blocks_of_filters() -> None:
    w = normal(20, 3, 3, 3)
    laid = TransformedWeights(TWO, 16)(w)
    assert laid.shape == (2, 16, 3, 16)
    # The first and the last spot are the corners of the window.
    np.testing.assert_array_equal(laid[0, 0], w[:16, :, 0, 0].T)
    np.testing.assert_array_equal(laid[1, 15, :, :4], w[16:, :, 2, 2].T)
    assert not laid[1, :, :, 4:].any()

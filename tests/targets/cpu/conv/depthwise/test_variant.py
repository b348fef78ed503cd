"""Convolution of each channel by a filter of its own, against its meaning in float64."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.epilogue import RELU, Epilogue
from dovetail.library.activation import Activation
from dovetail.targets.cpu.conv.depthwise import DepthwiseTile, register_tile, rows_of
from dovetail.targets.cpu.isa import Host
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
from tests.kernels.machines import MACHINES, code_for, on_stack, products

compiled = partial(served, "depth_conv")
check = partial(checked, "depth_conv")


def depthwise(shape: tuple[int, ...], *window: int, **attrs: Any) -> Graph:
    """A filter of this window for every channel."""
    return network(shape, (shape[1], 1, *window), groups=shape[1], **attrs)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (3, 3), (7, 7), (8, 15), (14, 16), (17, 17), (31, 33), (25, 40)])
def test_every_size(size: tuple[int, int], stride: int) -> None:
    x = (2, 5, *size)
    check(depthwise(x, 3, 3, strides=(stride, stride), padding=(1, 1, 1, 1), act="relu"), {"x": normal(*x)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [
        Window((5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
        Window((5, 5), (2, 2), (1, 1), (2, 1, 1, 2)),
        Window((7, 7), (1, 1), (1, 1), (3, 3, 3, 3)),
        Window((3, 3), (1, 1), (2, 2), (2, 2, 2, 2)),
        Window((3, 3), (2, 2), (2, 3), (0, 1, 3, 2)),
        Window((2, 4), (1, 2), (1, 1), (0, 20, 1, 19)),
        Window((4, 2), (3, 1), (1, 4), (5, 0, 6, 0)),
        Window((1, 9), (1, 1), (1, 1), (0, 4, 0, 4)),
        Window((9, 1), (1, 2), (1, 1), (4, 0, 4, 0)),
        Window((2, 2), (4, 2), (1, 1), (0, 0, 0, 0)),
    ],
)
def test_every_window(window: Window) -> None:
    check(window.over((2, 3, 19, 23), 3, groups=3), {"x": normal(2, 3, 19, 23)})


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (6, 6), (14, 14), (1, 200)])
def test_few_places_times_one_number(size: tuple[int, int]) -> None:
    x = (2, 5, *size)
    check(depthwise(x, 1, 1, act="hard_swish"), {"x": normal(*x)})


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 15, 33, 64, 200])
def test_one_axis(size: int) -> None:
    x = (2, 6, size)
    for stride, dilation in ((1, 1), (2, 1), (1, 3)):
        graph = depthwise(x, 5, strides=(stride,), dilations=(dilation,), padding=(7, 6), act="relu")
        check(graph, {"x": normal(*x)})


@pytest.mark.slow
def test_large_planes_are_cut_in_bands() -> None:
    for x, stride in (((1, 2, 113, 130), 1), ((1, 2, 70, 300), 2), ((1, 1, 5, 5000), 1)):
        check(depthwise(x, 3, 3, strides=(stride, stride), padding=(1, 1, 1, 1)), {"x": normal(*x)})


@pytest.mark.slow
@pytest.mark.parametrize("act", ["none", "relu", "silu", "sigmoid", "gelu", "tanh"])
@pytest.mark.parametrize("bias", [False, True])
def test_epilogues(act: Activation, bias: bool) -> None:
    shape = (2, 19, 9, 18)
    w, b = param("w", f32[19, 1, 3, 3]), param("b", f32[19, 1, 1]) if bias else None
    for residual in (None, input("r", f32[shape])):
        y = library.conv_bias_act(
            input("x", f32[shape]), w, b, residual, act=act, padding=(1, 1, 1, 1), groups=19,
        )  # fmt: skip
        feeds = {"x": normal(*shape), "r": normal(*shape)}
        check(Graph.of(y), {name: feeds[name] for name in (("x",) if residual is None else ("x", "r"))})


def test_what_is_no_number_goes_where_it_is_seen() -> None:
    x = normal(1, 4, 11, 20)
    x[0, 0, 0, 0], x[0, 1, 5, 19], x[0, 2, 10, 3] = np.nan, np.inf, -np.inf
    got = check(depthwise(x.shape, 3, 3, padding=(1, 1, 1, 1), act="relu"), {"x": x})
    assert np.isnan(got[0, 0, :2, :2]).all()
    assert np.isnan(got).sum() == 4
    assert np.isfinite(got[0, 3]).all()


@pytest.mark.slow
def test_sizes_that_come_late() -> None:
    for stride in (1, 2):
        graph = network(("n", 7, "h", "w"), (7, 1, 3, 3), groups=7, strides=(stride, stride), padding=(1, 1, 1, 1))
        sizes = [(1, 14, 14), (2, 9, 30), (0, 7, 7), (1, 1, 1), (1, 60, 90)]
        check(graph, *({"x": normal(n, 7, h, w)} for n, h, w in sizes))


def test_views_are_read_where_they_lie() -> None:
    x = input("x", f32[9, 2, 6, 21])
    view = ops.permute(ops.flip(x, axes=(-4,)), order=(-3, -2, -4, -1))
    y = ops.conv(view, param("w", f32[6, 1, 3, 3]), padding=(1, 1, 1, 1), groups=6)
    check(Graph.of(y), {"x": normal(9, 2, 6, 21)})


@pytest.mark.slow
def test_threads_do_not_change_a_bit() -> None:
    for x in ((1, 300, 7, 7), (2, 5, 120, 70)):
        graph = depthwise(x, 5, 5, padding=(2, 2, 2, 2), act="silu")
        same_by_threads(partial(compiled, graph, params_of(graph), WIDE), {"x": normal(*x)})


def test_others_are_left_to_other_kernels() -> None:
    x = (1, 16, 20, 20)
    for graph in (
        network(x, (32, 1, 3, 3), groups=16),
        network(x, (16, 2, 3, 3), groups=8),
        depthwise(x, 1, 1),
        depthwise(x, 13, 13),
        depthwise(x, 3, 3, strides=(3, 3)),
        depthwise((1, 16, 60, 60), 3, 3, dilations=(12, 12)),
    ):
        assert not serves("depth_conv", graph)


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    for x, window, stride in (((2, 5, 14, 14), 3, 1), ((1, 3, 15, 21), 5, 2), ((1, 3, 9, 9), 7, 1)):
        pad = window // 2
        graph = depthwise(x, window, window, strides=(stride, stride), padding=(pad,) * 4, act="relu")
        check(graph, {"x": normal(*x)}, vectors=vectors)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 2), (5, 1), (7, 1)])
@pytest.mark.parametrize("residual", [False, True])
def test_sums_stay_in_registers(machine: Host, window: int, stride: int, residual: bool) -> None:
    vectors = machine.device
    rows = rows_of(vectors, window, stride)
    tile = DepthwiseTile(
        vectors, (window, window), (stride, stride), (1, 1), (rows,), Epilogue(RELU, True, residual)
    )  # fmt: skip
    function = register_tile(tile, rows, 1)
    code = code_for(machine, "\n".join([*function.uses, function.text]))
    assert products(code) == rows * window**2
    assert not [line for line in on_stack(code) if re.search(r"[xyz]mm\d|\b[qv]\d", line)]

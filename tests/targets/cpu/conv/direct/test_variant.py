"""Convolution by its kernels, against its meaning in float64."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.library.activation import Activation
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.convolving import (
    OTHER_MACHINES,
    Window,
    compared,
    network,
    normal,
    on_a_machine_of,
    params_of,
    same_by_threads,
)
from tests.kernels.native import native_of
from tests.tolerances import assert_close

NAMES = ("conv", "conv_bias_act", "conv_transpose")


def compiled(graph: Graph, params: Mapping[str, Array], threads: int | None = None) -> NativeRunner:
    """The graph with its convolutions in kernels."""
    return native_of(graph, threads, served=NAMES).bind(params)


def check(graph: Graph, *feeds: Mapping[str, Array]) -> Array:
    """What the kernel gives, after it was compared."""
    params = params_of(graph)
    return compared(compiled(graph, params), params, *feeds)


def square(channels: int, size: int, filters: int, window: int, **attrs: Any) -> Graph:
    return network((1, channels, size, size), (filters, channels, window, window), **attrs)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 7, 15, 16, 17, 31, 33, 100])
@pytest.mark.parametrize(("window", "around"), [(1, 0), (3, 1)])
def test_every_size(size: int, window: int, around: int) -> None:
    check(square(5, size, 13, window, padding=(around,) * 4), {"x": normal(1, 5, size, size)})


@pytest.mark.slow
@pytest.mark.parametrize("filters", [1, 2, 3, 7, 8, 9, 16, 17, 31])
@pytest.mark.parametrize("channels", [1, 3, 17])
def test_every_number_of_filters(filters: int, channels: int) -> None:
    check(square(channels, 9, filters, 3, bias=False), {"x": normal(1, channels, 9, 9)})
    check(square(channels, 9, filters, 1), {"x": normal(1, channels, 9, 9)})


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 3, 9])
@pytest.mark.parametrize("after", [0, 2, 7])
def test_rows_of_every_width_with_zeros_around(before: int, after: int) -> None:
    """Rows shorter than a vector, and vectors that overlap at the end of a row."""
    padding = (1, before, 2, after)
    graph = network((1, 2, "h", "w"), (12, 2, 4, 1), padding=padding, dilations=(2, 1))
    check(graph, *({"x": normal(1, 2, 5, width)} for width in range(1, 14)))


@pytest.mark.parametrize(
    "window",
    [
        Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
        Window((7, 7), (2, 2), (1, 1), (3, 3, 3, 3)),
        Window((3, 5), (2, 1), (1, 1), (0, 2, 1, 0)),
        Window((3, 3), (1, 1), (2, 3), (2, 3, 2, 3)),
        Window((2, 4), (3, 2), (2, 2), (1, 0, 4, 2)),
        Window((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
        Window((1, 1), (1, 1), (1, 1), (1, 2, 3, 4)),
        Window((1, 1), (3, 2), (1, 1), (2, 1, 0, 1)),
        Window((5, 1), (1, 1), (1, 1), (2, 0, 2, 0)),
        Window((1, 9), (1, 4), (1, 1), (0, 8, 0, 8)),
        Window((11, 13), (1, 1), (1, 1), (9, 9, 9, 9)),
    ],
)
def test_every_window(window: Window) -> None:
    check(window.over((2, 6, 14, 19), 9), {"x": normal(2, 6, 14, 19)})


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "filters"), [(2, 6), (3, 12), (6, 6), (6, 12), (6, 54)])
@pytest.mark.parametrize("stride", [1, 2])
def test_groups(groups: int, filters: int, stride: int) -> None:
    around: dict[str, Any] = {"strides": (stride, stride), "padding": (1, 1, 1, 1)}
    graph = network((2, 6, 15, 17), (filters, 6 // groups, 3, 3), groups=groups, **around)
    check(graph, {"x": normal(2, 6, 15, 17)})


@pytest.mark.slow
@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation(act: Activation) -> None:
    x = {"x": normal(1, 8, 12, 16) * 3}
    check(square(8, 12, 16, 1, act=act), {"x": normal(1, 8, 12, 12) * 3})
    check(network((1, 8, 12, 16), (5, 8, 3, 3), act=act, padding=(1, 1, 1, 1)), x)


@pytest.mark.slow
def test_one_code_for_every_size() -> None:
    feeds = [{"x": normal(n, 4, h, w)} for n, h, w in [(1, 3, 3), (2, 17, 33), (1, 40, 700), (3, 8, 1), (0, 5, 5)]]
    check(network(("n", 4, "h", "w"), (10, 4, 3, 3), padding=(1, 1, 1, 1), strides=(2, 2)), *feeds)
    check(network(("n", 4, "h", "w"), (10, 4, 1, 1)), *feeds)


@pytest.mark.slow
def test_one_axis() -> None:
    check(network((2, 5, 100), (7, 5, 9), padding=(4, 4), strides=(2,)), {"x": normal(2, 5, 100)})
    check(network((1, 1, "t"), (16, 1, 400), strides=(160,)), *({"x": normal(1, 1, t)} for t in (400, 1000, 16000)))


@pytest.mark.slow
def test_wide_images_are_cut_into_blocks() -> None:
    check(network((1, 2, 3, 2000), (8, 2, 3, 3), padding=(1, 1, 1, 1)), {"x": normal(1, 2, 3, 2000)})
    check(network((1, 700, 20, 20), (8, 700, 3, 3), padding=(1, 1, 1, 1)), {"x": normal(1, 700, 20, 20)})
    check(network((1, 3000, 10, 20), (4, 3000, 1, 1)), {"x": normal(1, 3000, 10, 20)})


def _turned(x: Value) -> Value:
    return ops.permute(x, order=(-4, -3, -1, -2))


def _channels_last(x: Value) -> Value:
    return ops.permute(x, order=(-4, -1, -3, -2))


def _part(x: Value) -> Value:
    return ops.slice_(ops.slice_(x, axis=-1, start=1, stop=9, step=2), axis=-3, start=1, stop=4)


def _flipped(x: Value) -> Value:
    return ops.flip(x, axes=(-1, -2))


def _repeated(x: Value) -> Value:
    return ops.expand(ops.slice_(x, axis=-3, start=0, stop=1), axis=-3, size=4)


@pytest.mark.slow
@pytest.mark.parametrize("view", [_turned, _channels_last, _part, _flipped, _repeated])
@pytest.mark.parametrize(("window", "stride"), [(1, 1), (3, 1), (3, 2)])
def test_views_are_read_where_they_lie(view: Any, window: int, stride: int) -> None:
    x = view(input("x", f32[2, 6, 12, 10]))
    w = param("w", f32[5, x.shape[1], window, window])
    check(Graph.of(ops.conv(x, w, strides=(stride, stride), padding=(1, 1, 1, 1))), {"x": normal(2, 6, 12, 10)})


@pytest.mark.slow
def test_what_is_not_finite_goes_where_it_is_seen() -> None:
    x = normal(1, 3, 9, 40)
    x[0, 1, 4, 20], x[0, 2, 0, 0], x[0, 0, 8, 39] = np.nan, np.inf, -np.inf
    got = check(network((1, 3, 9, 40), (9, 3, 3, 3), padding=(1, 1, 1, 1), act="relu"), {"x": x})
    assert np.isnan(got[0, :, 3:6, 19:22]).all()
    assert np.isfinite(got[0, :, 3:6, 22:]).all()


def test_a_residual_that_the_convolution_is_stretched_to() -> None:
    x, r, w = input("x", f32[1, 2, 3, 3]), input("r", f32[1, 4, 6, 5]), param("w", f32[4, 2, 3, 3])
    graph = Graph.of(conv_bias_act(x, w, residual=r, act="relu"))
    feeds, params = {"x": normal(1, 2, 3, 3), "r": normal(1, 4, 6, 5)}, {"w": normal(4, 2, 3, 3)}
    (found,) = NativeGraph(make_plan(graph, target=CPU)).bind(params).run(feeds).values()
    one = np.einsum("nchw,mchw->nm", feeds["x"].astype(np.float64), params["w"].astype(np.float64))
    assert_close(found, np.maximum(one[..., None, None] + feeds["r"], 0), f32)


def test_weights_of_a_run() -> None:
    graph = Graph.of(ops.conv(input("x", f32[1, 2, 5, 5]), input("w", f32[3, 2, 3, 3])))
    native = NativeGraph(make_plan(graph, target=CPU))
    assert not native.on_host
    feeds = {"x": normal(1, 2, 5, 5), "w": normal(3, 2, 3, 3)}
    (found,) = native.bind({}).run(feeds).values()
    (expected,) = evaluate(graph, feeds, lift=True).values()
    assert_close(found, expected, f32)


@pytest.mark.slow
def test_threads_do_not_change_a_bit() -> None:
    for graph, feeds in [
        (square(40, 30, 50, 3, padding=(1, 1, 1, 1)), {"x": normal(1, 40, 30, 30)}),
        (square(64, 33, 70, 1), {"x": normal(1, 64, 33, 33)}),
    ]:
        params = params_of(graph)
        same_by_threads(partial(compiled, graph, params), feeds)


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    check(square(6, 13, 20, 3, padding=(1, 1, 1, 1), act="silu"), {"x": normal(1, 6, 13, 13)})
    check(square(6, 16, 20, 1, act="gelu"), {"x": normal(1, 6, 16, 16)})
    check(square(6, 13, 20, 3, padding=(1, 1, 1, 1), strides=(2, 2)), {"x": normal(1, 6, 13, 13)})


@pytest.mark.parametrize(
    ("window", "attrs"),
    [
        ((2, 2), {"strides": (2, 2)}),
        ((3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)}),
        ((4, 4), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
        ((3, 2), {"strides": (3, 1), "dilations": (1, 2), "padding": (0, 1, 2, 0)}),
        ((1, 1), {}),
        ((1, 1), {"strides": (2, 3), "padding": (1, 0, 0, 1)}),
        ((2, 3), {"strides": (4, 5), "padding": (3, 4, 0, 2), "output_padding": (2, 1)}),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_transposes(window: tuple[int, int], attrs: dict[str, Any], groups: int) -> None:
    x, w = input("x", f32[2, 6, 7, 18]), param("w", f32[6, 5, *window])
    check(Graph.of(ops.conv_transpose(x, w, groups=groups, **attrs)), {"x": normal(2, 6, 7, 18)})


@pytest.mark.slow
def test_transposes_of_every_size() -> None:
    graph = Graph.of(ops.conv_transpose(input("x", f32["n", 3, "h", "w"]), param("w", f32[3, 9, 2, 2]), strides=(2, 2)))
    check(graph, *({"x": normal(n, 3, h, w)} for n, h, w in [(1, 1, 1), (2, 9, 33), (1, 3, 400)]))
    graph = Graph.of(
        ops.conv_transpose(input("x", f32[1, 3, 20]), param("w", f32[3, 4, 5]), strides=(3,), padding=(2, 1))
    )
    check(graph, {"x": normal(1, 3, 20)})

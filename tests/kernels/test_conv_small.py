"""Convolution over few places by its kernel, against its meaning in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pytest

from dovetail import Graph, f32, library, ops
from dovetail.ir.dim import Size
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.conv_forms import make_conv
from dovetail.kernels.job import Job, Places
from dovetail.kernels.vector import Vectors
from dovetail.library.activation import Activation
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu import ready
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

WIDE = Vectors(16, 32)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def network(shape: tuple[Size | str, ...], weights: tuple[int, ...], bias: bool = True, **attrs: Any) -> Graph:
    spatial = len(shape) - 2
    b = param("b", f32[(weights[0], *(1,) * spatial)]) if bias else None
    ones: dict[str, Any] = {"strides": (1,) * spatial, "dilations": (1,) * spatial, "padding": (0,) * (2 * spatial)}
    return Graph.of(library.conv_bias_act(input("x", f32[shape]), param("w", f32[weights]), b, **{**ones, **attrs}))


def params_of(graph: Graph) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for value in graph.parameters:
        shape = [s for s in value.shape if isinstance(s, int)]
        found[value.attrs["name"]] = (normal(*shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
    return found


def job_of(graph: Graph, vectors: Vectors) -> Job | None:
    plan = make_plan(graph, target="cpu")
    (step,) = plan.phase("run")
    job = make_conv(step, Places(plan.locate, set()), vectors)
    return job if job is not None and job.kernel.name.startswith("small_conv") else None


def compiled(graph: Graph, params: Mapping[str, Array], vectors: Vectors, threads: int | None = None) -> NativeRunner:
    assert job_of(graph, vectors) is not None, "another kernel serves it"
    return NativeGraph(make_plan(graph, target="cpu"), threads=threads).bind(params)


def check(graph: Graph, feeds: Mapping[str, Array], vectors: Vectors = WIDE) -> Array:
    """What the kernel gives, after it was compared."""
    params = params_of(graph)
    (got,) = compiled(graph, params, vectors).run(feeds).values()
    with np.errstate(all="ignore"):
        (expected,) = evaluate(graph, feeds, params=params, lift=True).values()
    assert_close(got, expected, f32)
    return got


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 14])
@pytest.mark.parametrize(("window", "around"), [(1, 0), (3, 1)])
def test_every_size(size: int, window: int, around: int) -> None:
    graph = network((2, 202, size, size), (64, 202, window, window), padding=(around,) * 4)
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
    check(network((1, 128, 5, 7), (64, 128, 1, 1), act=act), {"x": normal(1, 128, 5, 7)})


def test_groups_and_one_axis() -> None:
    check(network((1, 64, 9, 9), (128, 32, 3, 3), groups=2, padding=(1, 1, 1, 1)), {"x": normal(1, 64, 9, 9)})
    check(network((2, 64, 50), (64, 64, 5), padding=(2, 2), strides=(2,)), {"x": normal(2, 64, 50)})


def test_any_number_of_images() -> None:
    graph = network(("n", 64, 7, 7), (64, 64, 3, 3), padding=(1, 1, 1, 1))
    params = params_of(graph)
    runner = compiled(graph, params, WIDE)
    for count in (0, 1, 3):
        x = {"x": normal(count, 64, 7, 7)}
        (got,), (expected,) = runner.run(x).values(), evaluate(graph, x, params=params, lift=True).values()
        assert_close(got, expected, f32)


@pytest.mark.parametrize("padding", [0, 1])
def test_views_are_read_where_they_lie(padding: int) -> None:
    x = input("x", f32[1, 9, 10, 64])
    for view in (ops.permute(x, order=(-4, -1, -3, -2)), ops.flip(ops.permute(x, order=(-4, -1, -2, -3)), axes=(-1,))):
        y = ops.conv(view, param("w", f32[64, 64, 3, 3]), padding=(padding,) * 4)
        check(Graph.of(y), {"x": normal(1, 9, 10, 64)})


def test_threads_do_not_change_a_bit() -> None:
    graph = network((1, 100, 14, 14), (128, 100, 3, 3), padding=(1, 1, 1, 1))
    params, feeds = params_of(graph), {"x": normal(1, 100, 14, 14)}
    (one,) = compiled(graph, params, WIDE, 1).run(feeds).values()
    (three,) = compiled(graph, params, WIDE, 3).run(feeds).values()
    assert (one.view(np.uint32) == three.view(np.uint32)).all()


@pytest.mark.parametrize(("lanes", "registers"), [(4, 16), (4, 32), (8, 16)])
def test_other_machines(monkeypatch: pytest.MonkeyPatch, lanes: int, registers: int) -> None:
    def narrow(*_: int) -> Vectors:
        return Vectors(lanes, registers)

    monkeypatch.setattr(ready, "Vectors", narrow)
    graph = network((1, 40, 9, 7), (64, 40, 3, 3), padding=(1, 1, 1, 1), act="relu")
    check(graph, {"x": normal(1, 40, 9, 7)}, Vectors(lanes, registers))

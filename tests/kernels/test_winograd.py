"""Convolution by Winograd's scheme, against its meaning in float64."""

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
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cpu import ready
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def network(shape: tuple[Size | str, ...], filters: int, bias: bool = True, **attrs: Any) -> Graph:
    around: dict[str, Any] = {"padding": (1, 1, 1, 1)}
    b = param("b", f32[filters, 1, 1]) if bias else None
    w = param("w", f32[filters, shape[1], 3, 3])
    return Graph.of(library.conv_bias_act(input("x", f32[shape]), w, b, **{**around, **attrs}))


def params_of(graph: Graph) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for value in graph.parameters:
        shape = [s for s in value.shape if isinstance(s, int)]
        found[value.attrs["name"]] = (normal(*shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
    return found


def job_of(plan: Plan, strict: bool = False) -> Job | None:
    (step,) = plan.phase("run")
    job = make_conv(step, Places(plan.locate, set(), strict), Vectors(16, 32))
    kernels = [] if job is None else [job.kernel, *(form.kernel for form in job.forms)]
    return job if any(kernel.name.startswith("winograd") for kernel in kernels) else None


def compiled(graph: Graph, params: Mapping[str, Array], threads: int | None = None) -> NativeRunner:
    plan = make_plan(graph, target="cpu")
    assert job_of(plan) is not None, "another scheme serves it"
    return NativeGraph(plan, threads=threads).bind(params)


def check(graph: Graph, *feeds: Mapping[str, Array]) -> Array:
    """What the kernel gives, after it was compared."""
    params = params_of(graph)
    runner = compiled(graph, params)
    got = np.empty(0)
    for fed in feeds:
        (got,) = runner.run(fed).values()
        (expected,) = evaluate(graph, fed, params=params, lift=True).values()
        assert_close(got, expected, f32)
    return got


@pytest.mark.parametrize("size", [18, 21, 31, 33, 56])
def test_every_size(size: int) -> None:
    check(network((1, 32, size, size + 3), 40), {"x": normal(1, 32, size, size + 3)})


@pytest.mark.parametrize(("channels", "filters"), [(32, 33), (33, 47), (64, 64), (100, 32)])
def test_every_number_of_channels(channels: int, filters: int) -> None:
    check(network((2, channels, 18, 21), filters, bias=False), {"x": normal(2, channels, 18, 21)})


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 2, 3), (2, 2, 2, 2)])
def test_every_padding(padding: tuple[int, ...]) -> None:
    check(network((1, 32, 25, 30), 32, padding=padding), {"x": normal(1, 32, 25, 30)})


@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation(act: Activation) -> None:
    check(network((1, 32, 20, 24), 32, act=act), {"x": normal(1, 32, 20, 24)})


def test_one_code_for_every_size() -> None:
    shapes = [(1, 1, 1), (2, 9, 33), (1, 40, 300), (0, 8, 8), (1, 70, 3)]
    check(network(("n", 32, "h", "w"), 40), *({"x": normal(n, 32, h, w)} for n, h, w in shapes))


def test_views_are_read_where_they_lie() -> None:
    x = ops.permute(input("x", f32[1, 20, 24, 32]), order=(-4, -1, -3, -2))
    w = param("w", f32[32, 32, 3, 3])
    check(Graph.of(ops.conv(x, w, padding=(1, 1, 1, 1))), {"x": normal(1, 20, 24, 32)})


def test_many_channels_lose_little() -> None:
    graph = network((1, 512, 24, 24), 64)
    params = params_of(graph)
    feeds = {"x": normal(1, 512, 24, 24)}
    (got,) = compiled(graph, params).run(feeds).values()
    (expected,) = evaluate(graph, feeds, params=params, lift=True).values()
    assert np.abs(got - expected).max() < 2e-5


def test_threads_do_not_change_a_bit() -> None:
    graph = network((1, 40, 30, 30), 70)
    params, feeds = params_of(graph), {"x": normal(1, 40, 30, 30)}
    (one,) = compiled(graph, params, 1).run(feeds).values()
    (three,) = compiled(graph, params, 3).run(feeds).values()
    assert (one.view(np.uint32) == three.view(np.uint32)).all()


def test_strict_programs_sum_in_the_plain_way() -> None:
    plan = make_plan(network((1, 32, 24, 24), 32), target="cpu")
    assert job_of(plan) is not None
    assert job_of(plan, strict=True) is None


def test_it_serves_only_where_it_wins() -> None:
    for graph in [
        network((1, 3, 56, 56), 64),
        network((1, 64, 56, 56), 3),
        network((1, 64, 7, 7), 64),
        network((1, 64, 56, 56), 64, strides=(2, 2)),
        network((1, 64, 56, 56), 64, dilations=(2, 2)),
    ]:
        assert job_of(make_plan(graph, target="cpu")) is None


@pytest.mark.parametrize(("lanes", "registers"), [(4, 16), (8, 16)])
def test_other_machines(monkeypatch: pytest.MonkeyPatch, lanes: int, registers: int) -> None:
    def narrow(*_: int) -> Vectors:
        return Vectors(lanes, registers)

    monkeypatch.setattr(ready, "Vectors", narrow)
    check(network((1, 32, 22, 19), 40, act="relu"), {"x": normal(1, 32, 22, 19)})

"""Convolution with a residual in its epilogue, by each of its kernels, against its meaning in float64."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from dovetail import Graph, compile, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import Size
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.choice import StepProblem
from dovetail.kernels.families.row_steps import RowForm
from dovetail.kernels.problems.convolution import Convolution
from dovetail.kernels.spec import Job
from dovetail.library.activation import Activation
from dovetail.ops.build import slice_axis
from dovetail.plan.plan import Step, make_plan
from dovetail.targets.cpu import anchors
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.conv.epilogue import Applied, steps_of
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.runtime.building.build import build
from tests.kernels import native
from tests.kernels.convolving import WIDE, compared, normal, on_a_machine_of, params_of

KERNELS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "conv": (2, (5, 30, 41), (13, 5, 3, 3), {"padding": (1, 1, 1, 1)}),
    "conv of one pixel": (2, (20, 16, 24), (16, 20, 1, 1), {}),
    "conv of groups": (1, (6, 33, 16), (8, 3, 1, 3), {"groups": 2, "padding": (0, 1, 0, 1)}),
    "conv that strides": (1, (6, 32, 32), (8, 6, 1, 1), {"strides": (2, 2)}),
    "point_conv": (2, (130, 13, 17), (24, 130, 1, 1), {}),
    "point_conv of few channels": (1, (32, 33, 33), (24, 32, 1, 1), {}),
    "point_conv of ragged filters": (1, (300, 16, 16), (21, 300, 1, 1), {}),
    "small_conv": (2, (30, 7, 9), (64, 30, 3, 3), {"padding": (1, 1, 1, 1)}),
    "small_conv of one pixel": (1, (256, 2, 11), (128, 256, 1, 1), {}),
    "small_conv of groups": (2, (64, 9, 9), (128, 32, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    "panel_conv": (2, (256, 7, 7), (128, 256, 1, 1), {}),
    "panel_conv of ragged filters": (2, (131, 9, 13), (122, 131, 1, 1), {}),
    "panel_conv that strides": (1, (128, 27, 28), (240, 128, 1, 1), {"strides": (2, 2)}),
    "row_conv": (2, (5, 33, 31), (62, 5, 5, 5), {"padding": (2, 2, 2, 2)}),
    "winograd_2x4": (2, (33, 25, 31), (37, 33, 3, 3), {"padding": (1, 1, 1, 1)}),
    "conv1d": (2, (40, 25), (33, 40, 3), {"strides": (1,), "dilations": (1,), "padding": (1, 1)}),
    "conv of a line": (2, (6, 250), (33, 6, 3), {"strides": (1,), "dilations": (1,), "padding": (1, 1)}),
}
"""Kernels with images, an image, weights and attributes that they serve."""


def operands(kernel: str, bias: bool = True) -> tuple[Value, Value, Value | None, dict[str, Any]]:
    images, image, weights, attrs = KERNELS[kernel]
    b = param("b", f32[(weights[0], *(1,) * (len(image) - 1))]) if bias else None
    return input("x", f32[(images, *image)]), param("w", f32[weights]), b, attrs


def made(kernel: str, *, bias: bool = True, act: Activation = "relu") -> Graph:
    x, w, b, attrs = operands(kernel, bias)
    r = input("r", f32[library.conv_bias_act(x, w, b, **attrs).shape])
    return Graph.of(library.conv_bias_act(x, w, b, r, act=act, **attrs))


def feeds_of(graph: Graph) -> dict[str, Array]:
    return {v.attrs["name"]: normal(*[s for s in v.shape if isinstance(s, int)]) for v in graph.inputs}


def stems(graph: Graph) -> list[str]:
    jobs = build(make_plan(graph, target=CPU), BACKEND).jobs
    return [job.kernel.name.rpartition("_")[0] for job in jobs if isinstance(job, Job)]


def check(graph: Graph, feeds: dict[str, Array] | None = None) -> Array:
    """What the kernel gives, after it was compared."""
    feeds, params = feeds or feeds_of(graph), params_of(graph)
    return native.check(graph, feeds, params=params)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_every_kernel_adds_it(kernel: str, bias: bool) -> None:
    graph = made(kernel, bias=bias)
    check(graph)


@pytest.mark.parametrize("kernel", ["conv", "point_conv", "small_conv", "panel_conv", "winograd_2x4"])
@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation_comes_behind_it(kernel: str, act: Activation) -> None:
    check(made(kernel, act=act))


@pytest.mark.parametrize(
    "kernel", ["conv", "conv of one pixel", "point_conv", "small_conv", "panel_conv", "winograd_2x4"]
)
@pytest.mark.parametrize("look", ["channels of more", "turned", "one for all images", "rows of longer ones"])
def test_however_it_lies(kernel: str, look: str) -> None:
    x, w, b, attrs = operands(kernel)
    n, m, h, v = (s for s in library.conv_bias_act(x, w, b, **attrs).shape if isinstance(s, int))
    match look:
        case "channels of more":
            r = slice_axis(input("r", f32[n, m + 3, h, v]), axis=1, start=2, stop=m + 2)
        case "turned":
            r = ops.permute(input("r", f32[n, v, m, h]), order=(-2, -1, -3))
        case "one for all images":
            r = ops.expand(input("r", f32[1, m, h, v]), axis=-4, size=n)
        case _:
            r = slice_axis(input("r", f32[n, m, h, v + 2]), axis=3, start=1, stop=v + 1)
    check(Graph.of(library.conv_bias_act(x, w, b, r, act="silu", **attrs)))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if "groups" not in kernel])
def test_results_take_its_memory(kernel: str) -> None:
    x, w, b, attrs = operands(kernel)
    r = ops.tanh(input("r", f32[library.conv_bias_act(x, w, b, **attrs).shape]))
    graph = Graph.of(ops.tanh(library.conv_bias_act(x, w, b, r, act="relu", **attrs)))
    assert [step.over for step in make_plan(graph, target=CPU).phase("run")][1] is r
    check(graph)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_no_number_comes_through(kernel: str) -> None:
    graph = made(kernel, act="none")
    feeds = feeds_of(graph)
    places = np.unravel_index([0, 5, feeds["r"].size - 1], feeds["r"].shape)
    feeds["r"][places] = [np.nan, np.inf, -np.inf]
    got = check(graph, feeds)[places]
    assert np.isnan(got[0]) and got[1] == np.inf and got[2] == -np.inf


@pytest.mark.parametrize("kernel", KERNELS)
def test_bits_do_not_depend_on_threads(kernel: str) -> None:
    graph = made(kernel)
    plan, feeds, params = make_plan(graph, target=CPU), feeds_of(graph), params_of(graph)
    results = [NativeGraph(plan, threads=n).bind(params).run(feeds) for n in (1, 2, 3)]
    (first, *others) = [next(iter(r.values())) for r in results]
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 3])
def test_sizes_that_come_late(window: int) -> None:
    height: Size | str = "height"
    x, w = input("x", f32["n", 64, height, "width"]), param("w", f32[64, 64, window, window])
    y = library.conv_bias_act(x, w, padding=(window // 2,) * 4)
    graph = Graph.of(
        library.conv_bias_act(x, w, None, input("r", f32[y.shape]), act="relu", padding=(window // 2,) * 4)
    )
    params = params_of(graph)
    runner = NativeGraph(make_plan(graph, target=CPU)).bind(params)
    sizes = ((1, 5, 6), (2, 13, 12), (1, 30, 31), (2, 70, 66), (1, 1, 1))
    compared(runner, params, *({name: normal(n, 64, *size) for name in ("x", "r")} for n, *size in sizes))


@pytest.mark.exhaustive
def test_these_are_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one serves a shape depends on how wide vectors are."""
    on_a_machine_of(WIDE, monkeypatch)
    found = {kernel: stems(made(kernel)) for kernel in KERNELS}
    assert found == {kernel: [kernel.split(" ")[0]] for kernel in KERNELS}


@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation_is_vector_code(act: Activation) -> None:
    (value,) = made("conv", act=act).outputs.values()
    found = Convolution.of(value)
    assert found is not None
    steps = steps_of(found, StepProblem(Step("conv", value, "run"), anchors.DENSE, None), RowForm("channel"))
    assert isinstance(steps, Applied) and steps.rows is None and bool(steps.steps) == (act != "none")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["conv", "point_conv", "small_conv", "winograd_2x4"])
def test_a_clamp_by_a_zero_has_its_sign(kernel: str) -> None:
    """0.0 is larger than -0.0."""
    x, w, _, attrs = operands(kernel, bias=False)
    y = library.conv_bias_act(x, w, **attrs)
    for step, is_negative in ((ops.maximum, False), (ops.minimum, True)):
        graph = Graph.of(step(y, -0.0))
        params = {name: np.zeros_like(array) for name, array in params_of(graph).items()}
        (got,) = compile(graph, threads=1).bind(params).run(feeds_of(graph)).values()
        assert not got.any() and (np.signbit(got) == is_negative).all()

"""What the tests of convolutions share: one convolution of an input, its weights, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import Size
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.conv.select import ROWS
from dovetail.targets.cpu.conv.winograd import rounding
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.runtime.selection import Kind, Table
from tests.kernels import native

WIDE = CpuDevice(
    512,
    32,
    ("embedded_broadcast", "masked_memory", "scale_by_power_of_two"),
    emulated=not host_device().has("embedded_broadcast"),
)
"""AVX-512; on a processor without it, kernels made for it run in plain vector code."""
_OTHERS = {
    "sse": CpuDevice(128, 16),
    "neon": CpuDevice(128, 32, ("fma_by_lane",)),
    "avx2": CpuDevice(256, 16, ("masked_memory",)),
}
OTHER_MACHINES = pytest.mark.parametrize("vectors", _OTHERS.values(), ids=_OTHERS)


class Window(NamedTuple):
    """What a convolution does with an image."""

    size: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    padding: tuple[int, int, int, int]

    def over(self, shape: tuple[int, ...], filters: int, **attrs: Any) -> Graph:
        """One convolution of an input by this window."""
        weights = (filters, shape[1] // attrs.get("groups", 1), *self.size)
        rest = {"strides": self.strides, "dilations": self.dilations, "padding": self.padding}
        return network(shape, weights, **rest, **attrs)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def network(shape: tuple[Size | str, ...], weights: tuple[int, ...], bias: bool = True, **attrs: Any) -> Graph:
    """One convolution of an input."""
    spatial = len(shape) - 2
    b = param("b", f32[(weights[0], *(1,) * spatial)]) if bias else None
    ones: dict[str, Any] = {"strides": (1,) * spatial, "dilations": (1,) * spatial, "padding": (0,) * (2 * spatial)}
    return Graph.of(library.conv_bias_act(input("x", f32[shape]), param("w", f32[weights]), b, **{**ones, **attrs}))


def pixel(shape: tuple[Size | str, ...], filters: int, bias: bool = True, **attrs: Any) -> Graph:
    """A convolution whose window is one pixel."""
    return network(shape, (filters, channels(shape, **attrs), *(1,) * (len(shape) - 2)), bias, **attrs)


def around(shape: tuple[Size | str, ...], filters: int, bias: bool = True, **attrs: Any) -> Graph:
    """A convolution by a pixel and those around it, which keeps the size of the image."""
    return network(shape, (filters, channels(shape, **attrs), 3, 3), bias, **{"padding": (1, 1, 1, 1), **attrs})


def channels(shape: tuple[Size | str, ...], groups: int = 1, **_: Any) -> int:
    """How many channels a filter reads."""
    assert isinstance(shape[1], int)
    return shape[1] // groups


def params_of(graph: Graph) -> dict[str, Array]:
    """Weights that keep the size of what they are applied to."""
    found: dict[str, Array] = {}
    for value in graph.parameters:
        shape = [s for s in value.shape if isinstance(s, int)]
        found[value.attrs["name"]] = (normal(*shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
    return found


OF_IMAGES = Table((Kind("convolution", lambda value: True, lambda: [row for row in ROWS if row.name != "conv1d"]),))
"""The kernels of images, which take one axis too."""


def kernels_of(graph: Graph, vectors: CpuDevice = WIDE, strict: bool = False, alone: bool = False) -> list[str]:
    """What the kernel of the last step is called, and those that serve it at other sizes; `alone` says whether it is
    all of its network, or one of many layers."""
    plan = make_plan(graph, target=CPU)
    steps = tuple(step.value for step in plan.phase("run")) if alone else ()
    locations = TensorLocations(plan.locate, set(), strict, target=loops_of(vectors), steps=steps)
    job = OF_IMAGES.select(plan.phase("run")[-1], locations, vectors, BUILT_IN)
    kernels = [] if job is None else [job.kernel, *(form.kernel for form in job.variants)]
    return [kernel.name.rpartition("_")[0] for kernel in kernels]


def serves(stem: str, graph: Graph, vectors: CpuDevice = WIDE, strict: bool = False, alone: bool = False) -> bool:
    """Whether a kernel of this name serves it, at some sizes."""
    return stem in kernels_of(graph, vectors, strict, alone)


def served(
    stem: str,
    graph: Graph,
    params: Mapping[str, Array],
    vectors: CpuDevice = WIDE,
    threads: int | None = None,
    alone: bool = False,
) -> NativeRunner:
    """A convolution that is bound, after it was looked up that a kernel of this name serves it."""
    assert serves(stem, graph, vectors, alone=alone), "another kernel serves it"
    with pytest.MonkeyPatch.context() as patch:
        if not alone:
            patch.setattr(rounding, "LIMITS", replace(rounding.LIMITS, large_schemes=1.0))
        return NativeGraph(make_plan(graph, target=CPU), threads=threads).bind(params)


def checked(
    stem: str, graph: Graph, *feeds: Mapping[str, Array], vectors: CpuDevice = WIDE, alone: bool = False
) -> Array:
    """What the kernel of this name gives, after it was compared."""
    params = params_of(graph)
    return compared(served(stem, graph, params, vectors, alone=alone), params, *feeds)


def compared(runner: NativeRunner, params: Mapping[str, Array], *feeds: Mapping[str, Array]) -> Array:
    """What a kernel gives for the last of the feeds, after all were compared."""
    return native.compared(runner, params, *feeds)[-1]


def same_by_threads(runner_of: Callable[[int], NativeRunner], feeds: Mapping[str, Array]) -> None:
    """One thread and three give the same bits."""
    (one,), (three,) = (runner_of(threads).run(feeds).values() for threads in (1, 3))
    assert (one.view(np.uint32) == three.view(np.uint32)).all()


def checked_from_the_side(
    check: Callable[..., Array], shape: tuple[int, ...], weights: tuple[int, ...], padding: int
) -> None:
    """Images whose channels come last, and such whose rows are columns read backwards, are read where they lie."""
    x = input("x", f32[shape])
    for view in (ops.permute(x, order=(-4, -1, -3, -2)), ops.flip(ops.permute(x, order=(-4, -1, -2, -3)), axes=(-1,))):
        check(Graph.of(ops.conv(view, param("w", f32[weights]), padding=(padding,) * 4)), {"x": normal(*shape)})


def checked_with_what_is_no_number(runner: NativeRunner, x: Array, nan: tuple[int, int], inf: tuple[int, int]) -> None:
    """What is no number goes to all filters at its own place, and nowhere else."""
    x[0, 3, *nan], x[0, -1, *inf] = np.nan, np.inf
    (got,) = runner.run({"x": x}).values()
    assert np.isnan(got[0, :, *nan]).all() and not np.isfinite(got[0, :, *inf]).any()
    rest = np.ones(x.shape[2:], bool)
    rest[nan] = rest[inf] = False
    assert np.isfinite(got[0][:, rest]).all() and np.isfinite(got[1:]).all()


def on_a_machine_of(vectors: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are written for these vectors from now on."""

    monkeypatch.setattr(backend, "host_device", lambda: vectors)

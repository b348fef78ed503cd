"""Convolutions along one axis with few places, against their meaning in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import Size, symbol
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.library.activation import Activation
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.runtime.building import build as ready
from tests.kernels import native
from tests.kernels.convolving import OTHER_MACHINES, normal, on_a_machine_of, params_of
from tests.kernels.native import native_of


def compiled(graph: Graph, threads: int | None = None) -> NativeRunner:
    """The graph, whose convolution is products of rows."""
    return native_of(graph, threads, kernel="conv1d_", served=()).bind(params_of(graph))


def check(y: Value, *feeds: Mapping[str, Array], threads: int | None = None) -> list[Array]:
    graph = Graph.of(y)
    return native.check(graph, *feeds, params=params_of(graph), threads=threads, kernel="conv1d_", served=())


def convolved(
    n: Size,
    c: int,
    t: Size,
    m: int,
    taps: int,
    *,
    bias: bool = True,
    act: Activation = "relu",
    stride: int = 1,
    dilation: int = 1,
    padding: tuple[int, int] = (0, 0),
) -> Value:
    x, w, b = input("x", f32[n, c, t]), param("w", f32[m, c, taps]), param("b", f32[m, 1]) if bias else None
    return library.conv_bias_act(x, w, b, act=act, strides=(stride,), dilations=(dilation,), padding=padding)


N, T = symbol("n"), symbol("t")


@pytest.mark.slow
@pytest.mark.parametrize(("c", "m", "taps"), [(1, 17, 16), (3, 16, 5), (16, 33, 3), (33, 31, 1), (129, 128, 3)])
@pytest.mark.parametrize(
    ("stride", "dilation", "padding"), [(1, 1, (0, 0)), (2, 1, (1, 1)), (3, 2, (4, 0)), (1, 3, (2, 5))]
)
def test_every_length_of_one_compilation(
    c: int, m: int, taps: int, stride: int, dilation: int, padding: tuple[int, int]
) -> None:
    y = convolved(N, c, T, m, taps, stride=stride, dilation=dilation, padding=padding)
    reach = max(1, (taps - 1) * dilation + 1 - sum(padding))
    lengths = [(1, reach), (1, reach + 1), (2, reach + 7), (5, reach + 2), (1, reach + 60), (13, reach + 9)]
    check(y, *({"x": normal(n, c, t)} for n, t in lengths))


@pytest.mark.slow
@pytest.mark.parametrize("act", get_args(Activation))
@pytest.mark.parametrize("bias", [False, True])
def test_bias_and_activation(act: Activation, bias: bool) -> None:
    check(convolved(2, 20, 9, 24, 3, bias=bias, act=act, padding=(1, 1)), {"x": normal(2, 20, 9)})


@pytest.mark.slow
def test_channels_that_lie_side_by_side_serve_few_filters() -> None:
    x = ops.permute(input("x", f32["n", "t", 40]), order=(-1, -2))
    for filters in (1, 3, 40):
        y = ops.conv(x, param("w", f32[filters, 40, 1]), strides=(1,), dilations=(1,), padding=(0, 0))
        check(y, *({"x": normal(n, t, 40)} for n, t in ((1, 1), (2, 5), (1, 70))))


@pytest.mark.slow
def test_what_is_cut_out_of_a_tensor_is_read_where_it_lies() -> None:
    x = input("x", f32[2, 24, 19])
    part = ops.slice_(ops.slice_(x, axis=-1, start=2, stop=18, step=2), axis=-2, start=3, stop=23, step=1)
    check(ops.conv(part, param("w", f32[18, 20, 3]), padding=(1, 1)), {"x": normal(2, 24, 19)})


@pytest.mark.slow
def test_empty_batches_and_special_values() -> None:
    y = convolved(N, 4, T, 16, 3, act="none", bias=False, padding=(1, 1))
    (empty,) = check(y, {"x": normal(0, 4, 5)})
    assert empty.shape == (0, 16, 5)
    graph = Graph.of(y)
    x = normal(1, 4, 9)
    x[0, 1, 4] = np.nan
    (got,) = compiled(graph).run({"x": x}).values()
    assert np.isnan(got[0, :, 3:6]).all() and np.isfinite(got[0, :, :3]).all() and np.isfinite(got[0, :, 6:]).all()


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    y = convolved(N, 10, T, 21, 3, act="silu", padding=(1, 0), stride=2)
    check(y, *({"x": normal(n, 10, t)} for n, t in ((1, 2), (3, 9), (2, 40))))


@pytest.mark.slow
def test_bits_do_not_depend_on_threads() -> None:
    y = convolved(N, 64, T, 128, 3, padding=(1, 1))
    feeds = [{"x": normal(n, 64, t)} for n, t in ((1, 4), (7, 33))]
    found = [[a.tobytes() for a in check(y, *feeds, threads=threads)] for threads in (1, 2, 3)]
    assert found[0] == found[1] == found[2]


def test_long_results_are_left_to_other_code() -> None:
    graph = NativeGraph(make_plan(Graph.of(convolved(1, 8, 4000, 16, 3)), target=CPU))
    (job,) = graph.sections[0].jobs
    assert isinstance(job, ready.Job) and not job.kernel.name.startswith("conv1d_")

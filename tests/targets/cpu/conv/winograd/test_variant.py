"""Convolution by Winograd's scheme, against its meaning in float64."""

from __future__ import annotations

from functools import partial
from typing import get_args

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import CpuDevice
from dovetail.library.activation import Activation
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
)

compiled = partial(served, "winograd")
check = partial(checked, "winograd")


@pytest.mark.slow
@pytest.mark.parametrize("size", [18, 21, 31, 33, 56])
def test_every_size(size: int) -> None:
    check(around((1, 32, size, size + 3), 40), {"x": normal(1, 32, size, size + 3)})


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "filters"), [(32, 33), (33, 47), (64, 64), (100, 32)])
def test_every_number_of_channels(channels: int, filters: int) -> None:
    check(around((2, channels, 18, 21), filters, bias=False), {"x": normal(2, channels, 18, 21)})


@pytest.mark.slow
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 2, 3), (2, 2, 2, 2)])
def test_every_padding(padding: tuple[int, ...]) -> None:
    check(around((1, 32, 25, 30), 32, padding=padding), {"x": normal(1, 32, 25, 30)})


@pytest.mark.slow
@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation(act: Activation) -> None:
    check(around((1, 32, 20, 24), 32, act=act), {"x": normal(1, 32, 20, 24)})


@pytest.mark.slow
def test_one_code_for_every_size() -> None:
    shapes = [(1, 1, 1), (2, 9, 33), (1, 40, 300), (0, 8, 8), (1, 70, 3)]
    check(around(("n", 32, "h", "w"), 40), *({"x": normal(n, 32, h, w)} for n, h, w in shapes))


@pytest.mark.slow
def test_views_are_read_where_they_lie() -> None:
    x = ops.permute(input("x", f32[1, 20, 24, 32]), order=(-4, -1, -3, -2))
    w = param("w", f32[32, 32, 3, 3])
    check(Graph.of(ops.conv(x, w, padding=(1, 1, 1, 1))), {"x": normal(1, 20, 24, 32)})


@pytest.mark.slow
def test_many_channels_lose_little() -> None:
    graph = around((1, 512, 24, 24), 64)
    params = params_of(graph)
    feeds = {"x": normal(1, 512, 24, 24)}
    (got,) = compiled(graph, params).run(feeds).values()
    (expected,) = evaluate(graph, feeds, params=params, lift=True).values()
    assert np.abs(got - expected).max() < 2e-5


@pytest.mark.slow
def test_threads_do_not_change_a_bit() -> None:
    graph = around((1, 40, 30, 30), 70)
    same_by_threads(partial(compiled, graph, params_of(graph), WIDE), {"x": normal(1, 40, 30, 30)})


def test_strict_programs_sum_in_the_plain_way() -> None:
    graph = around((1, 32, 24, 24), 32)
    assert kernels_of(graph) == ["winograd"]
    assert kernels_of(graph, strict=True) == ["conv"]


def test_it_serves_only_where_it_wins() -> None:
    for graph in [
        around((1, 3, 56, 56), 64),
        around((1, 64, 56, 56), 3),
        around((1, 64, 7, 7), 64),
        around((1, 64, 56, 56), 64, strides=(2, 2)),
    ]:
        assert not {"winograd", "winograd_2"} & {*kernels_of(graph)}


@pytest.mark.slow
@OTHER_MACHINES
def test_other_machines(monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice) -> None:
    on_a_machine_of(vectors, monkeypatch)
    check(around((1, 32, 22, 19), 40, act="relu"), {"x": normal(1, 32, 22, 19)}, vectors=vectors)

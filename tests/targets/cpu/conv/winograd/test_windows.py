"""Winograd's schemes for 5×5 windows and for dilated ones, against the meaning of a convolution in float64."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dtype import DType, bf16, f16
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import CpuDevice
from dovetail.runtime.compile import explain
from dovetail.targets.cpu.conv.winograd.kernel import kernel_name
from dovetail.targets.cpu.conv.winograd.scheme import FIVE_FOUR, FIVE_TWO, FOUR, TWO, TWO_FOUR, Scheme
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.convolving import (
    OTHER_MACHINES,
    WIDE,
    checked,
    kernels_of,
    network,
    normal,
    on_a_machine_of,
    params_of,
    same_by_threads,
    served,
    serves,
)

DILATIONS = [(2, 2), (3, 3), (1, 4), (5, 1), (2, 7)]
SIZES = [(30, 33), (25, 31), (17, 40), (30, 31), (25, 40)]


def _around(shape: tuple[int | str, ...], filters: int, window: int, dilations: tuple[int, int], **attrs: Any) -> Graph:
    """A convolution that keeps the size of the image."""
    assert isinstance(shape[1], int)
    before = [window // 2 * d for d in dilations]
    given: dict[str, Any] = {"padding": (*before, *before), **attrs}
    return network(shape, (filters, shape[1], window, window), dilations=dilations, **given)


def _check(
    scheme: Scheme, graph: Graph, *feeds: dict[str, Any], vectors: CpuDevice = WIDE, alone: bool = False
) -> None:
    call = graph.outputs["y"]
    checked(kernel_name(scheme, call.attrs["dilations"] != (1, 1)), graph, *feeds, vectors=vectors, alone=alone)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(16, 16), (21, 24), (33, 29), (6, 70)])
def test_5x5_of_every_size(size: tuple[int, int]) -> None:
    _check(FIVE_TWO, _around((1, 32, *size), 40, 5, (1, 1)), {"x": normal(1, 32, *size)})


@pytest.mark.slow
@pytest.mark.parametrize(("dilations", "size"), list(zip(DILATIONS, SIZES, strict=True)))
@pytest.mark.parametrize(("window", "schemes"), [(3, (FOUR, TWO)), (3, (TWO_FOUR, TWO)), (5, (FIVE_TWO,))])
def test_every_dilation(
    window: int, schemes: tuple[Scheme, ...], dilations: tuple[int, int], size: tuple[int, int]
) -> None:
    graph, alone = _around((1, 64, *size), 48, window, dilations, act="relu"), TWO_FOUR in schemes
    scheme = next(s for s in schemes if serves(kernel_name(s, True), graph, alone=alone))
    _check(scheme, graph, {"x": normal(1, 64, *size)}, alone=alone)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(18, 33), (33, 27), (56, 30), (7, 120), (90, 9)])
def test_2x4_of_every_size(size: tuple[int, int]) -> None:
    _check(TWO_FOUR, _around((2, 33, *size), 40, 3, (1, 1)), {"x": normal(2, 33, *size)}, alone=True)


@pytest.mark.slow
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 2, 3), (4, 6, 5, 1)])
@pytest.mark.parametrize("dilations", [(1, 1), (3, 2)])
def test_every_padding(padding: tuple[int, ...], dilations: tuple[int, int]) -> None:
    """A patch may begin in another phase than the image."""
    _check(FIVE_TWO, _around((2, 32, 31, 34), 33, 5, dilations, padding=padding), {"x": normal(2, 32, 31, 34)})


@pytest.mark.slow
def test_one_code_for_every_size() -> None:
    shapes = [(1, 1, 1), (2, 19, 33), (1, 40, 100), (0, 8, 8), (1, 70, 3)]
    graph = _around(("n", 32, "h", "w"), 40, 5, (3, 3))
    _check(FIVE_TWO, graph, *({"x": normal(n, 32, h, w)} for n, h, w in shapes))


@pytest.mark.slow
def test_views_are_read_in_place() -> None:
    x = ops.permute(input("x", f32[1, 30, 34, 32]), order=(-4, -1, -3, -2))
    graph = Graph.of(ops.conv(x, param("w", f32[32, 32, 3, 3]), padding=(2, 3, 2, 3), dilations=(2, 3)))
    _check(FOUR, graph, {"x": normal(1, 30, 34, 32)})


@pytest.mark.slow
def test_a_residual_and_steps_on_rows() -> None:
    graph = _around((1, 32, 30, 33), 32, 5, (2, 3))
    x, w, b = graph.outputs["y"].operands
    attrs = {name: graph.outputs["y"].attrs[name] for name in ("dilations", "padding")}
    feeds = {"x": normal(1, 32, 30, 33), "r": normal(1, 32, 30, 33)}
    added = library.conv_bias_act(x, w, b, input("r", f32[1, 32, 30, 33]), act="relu", **attrs)
    _check(FIVE_TWO, Graph.of({"y": added}), feeds)


@pytest.mark.slow
def test_many_channels_lose_little() -> None:
    graph = _around((1, 256, 24, 24), 64, 5, (1, 1))
    params, feeds = params_of(graph), {"x": normal(1, 256, 24, 24)}
    (got,) = served(kernel_name(FIVE_TWO, False), graph, params).run(feeds).values()
    (expected,) = evaluate(graph, feeds, params=params, lift=True).values()
    assert np.abs(got - expected).max() < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("dilations", [(1, 1), (3, 3)])
def test_threads_do_not_change_a_bit(dilations: tuple[int, int]) -> None:
    graph = _around((1, 40, 30, 30), 70, 5, dilations)
    bound = partial(served, kernel_name(FIVE_TWO, dilations != (1, 1)), graph, params_of(graph), WIDE)
    same_by_threads(bound, {"x": normal(1, 40, 30, 30)})


@pytest.mark.slow
@pytest.mark.parametrize("dilations", [(1, 1), (3, 3)])
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_results_of_16_bits_take_larger_patches(dtype: DType, dilations: tuple[int, int]) -> None:
    """F(4×4, 5×5) rounds more than f32 allows, and a hundred times less than a 16-bit result does."""
    before = (2 * dilations[0], 2 * dilations[1])
    x, w = input("x", dtype[1, 64, 28, 29]), param("w", dtype[64, 64, 5, 5])
    graph = Graph.of({"y": library.conv_bias_act(x, w, act="relu", padding=(*before, *before), dilations=dilations)})
    feeds = {"x": normal(1, 64, 28, 29).astype(dtype.numpy)}
    params = {"w": (normal(64, 64, 5, 5) / 40).astype(dtype.numpy)}
    program = dovetail.compile(graph, target="cpu")
    assert "winograd 4×4" in [k.form for k in explain(graph, target="cpu", cache="off").kernels]
    found = program.bind(params).run(feeds)["y"].astype(np.float64)
    exact = evaluate(graph, feeds, params=params, lift=True)["y"].astype(np.float64)
    unit = 2.0**-11 if dtype is f16 else 2.0**-8
    assert (np.abs(found - exact) <= 1.01 * unit * np.abs(exact) + 2e-5).all()


def test_results_of_f32_do_not() -> None:
    assert not serves(kernel_name(FIVE_FOUR, False), _around((1, 64, 28, 28), 64, 5, (1, 1)))


def test_strict_programs_sum_in_the_plain_way() -> None:
    graph = _around((1, 64, 28, 28), 64, 5, (2, 2))
    assert "winograd" not in kernels_of(graph, strict=True)[0]


@pytest.mark.slow
@OTHER_MACHINES
@pytest.mark.parametrize(("scheme", "dilations"), [(FIVE_TWO, (1, 1)), (FIVE_TWO, (3, 2)), (TWO_FOUR, (1, 1))])
def test_other_machines(
    monkeypatch: pytest.MonkeyPatch, vectors: CpuDevice, scheme: Scheme, dilations: tuple[int, int]
) -> None:
    on_a_machine_of(vectors, monkeypatch)
    graph = _around((1, 32, 22, 29), 40, scheme.taps, dilations, act="relu")
    _check(scheme, graph, {"x": normal(1, 32, 22, 29)}, vectors=vectors, alone=scheme == TWO_FOUR)


@pytest.mark.parametrize("scheme", [FOUR, TWO_FOUR, TWO, FIVE_FOUR, FIVE_TWO], ids=str)
def test_patches_cover_every_pixel_once(scheme: Scheme) -> None:
    for size, axis in itertools.product(range(1, 60), {scheme.down, scheme.across}):
        for dilation in range(1, 9):
            patches = [divmod(i, dilation) for i in range(axis.patches(size, dilation))]
            seen = [(t * axis.out + k) * dilation + c for t, c in patches for k in range(axis.out)]
            assert sorted(x for x in seen if x < size) == list(range(size))

"""Convolution by a window of one pixel with filters in the lanes, against its meaning in float64."""

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
from dovetail.targets.cpu.conv.packing import Packing
from dovetail.targets.runtime.arrays.aligned import ALIGNMENT
from tests.kernels.convolving import (
    OTHER_MACHINES,
    WIDE,
    checked,
    checked_with_what_is_no_number,
    normal,
    params_of,
    pixel,
    same_by_threads,
    served,
    serves,
)

compiled = partial(served, "panel_conv")
check = partial(checked, "panel_conv")
is_panel = partial(serves, "panel_conv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("height", "width"), [(1, 7), (2, 7), (5, 10), (7, 7), (9, 11), (14, 14), (1, 97), (13, 17), (28, 28)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_every_size(height: int, width: int, bias: bool) -> None:
    channels = 130 if height * width <= 200 else 514
    check(pixel((2, channels, height, width), 128, bias), {"x": normal(2, channels, height, width)})


@pytest.mark.slow
@pytest.mark.parametrize("filters", [32, 47, 64, 93, 96, 160, 189])
@pytest.mark.parametrize("channels", [128, 129, 131, 300])
def test_every_number_of_filters(filters: int, channels: int) -> None:
    check(pixel((2, channels, 9, 14), filters), {"x": normal(2, channels, 9, 14)})


@pytest.mark.slow
@pytest.mark.parametrize("act", get_args(Activation))
def test_every_activation(act: Activation) -> None:
    check(pixel((2, 128, 7, 9), 61, act=act), {"x": normal(2, 128, 7, 9)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "strides", "filters"),
    [
        ((28, 28), (2, 2), 256),
        ((28, 28), (2, 2), 160),
        ((27, 28), (2, 2), 240),
        ((29, 14), (1, 2), 64),
        ((20, 22), (2, 2), 256),
        ((13, 13), (3, 1), 256),
        ((28, 28), (3, 4), 240),
    ],
)
def test_places_that_lie_apart(size: tuple[int, int], strides: tuple[int, int], filters: int) -> None:
    check(pixel((2, 128, *size), filters, strides=strides), {"x": normal(2, 128, *size)})


@pytest.mark.slow
def test_groups_and_one_axis() -> None:
    check(pixel((2, 384, 7, 8), 192, groups=3), {"x": normal(2, 384, 7, 8)})
    check(pixel((1, 128, 196), 64), {"x": normal(1, 128, 196)})
    check(pixel((1, 128, 415), 64, strides=(2,)), {"x": normal(1, 128, 415)})


@pytest.mark.slow
def test_many_channels_leave_room_for_fewer_places() -> None:
    check(pixel((1, 2100, 14, 14), 64), {"x": normal(1, 2100, 14, 14)})


@pytest.mark.slow
def test_one_program_for_every_size() -> None:
    graph = pixel(("n", 128, "h", "w"), 128, act="silu")
    sizes = ((1, 7, 7), (3, 10, 16), (0, 9, 9), (1, 31, 7), (1, 2, 3), (2, 28, 29))
    check(graph, *({"x": normal(n, 128, h, w)} for n, h, w in sizes))


@pytest.mark.slow
def test_images_are_read_where_they_lie() -> None:
    x = input("x", f32[1, 9, 128, 14])
    turned = ops.conv(ops.permute(x, order=(-4, -2, -3, -1)), param("w", f32[64, 128, 1, 1]))
    check(Graph.of(turned), {"x": normal(1, 9, 128, 14)})
    x = input("x", f32[3, 200, 9, 7])
    part = ops.slice_(x, axis=-3, start=20, stop=148)
    check(Graph.of(ops.conv(part, param("w", f32[64, 128, 1, 1]))), {"x": normal(3, 200, 9, 7)})


@pytest.mark.slow
def test_one_residual_for_all_images() -> None:
    x, w, b = input("x", f32[2, 128, 14, 14]), param("w", f32[64, 128, 1, 1]), param("b", f32[64, 1, 1])
    r = ops.expand(input("r", f32[1, 64, 14, 14]), axis=-4, size=2)
    graph = Graph.of(library.conv_bias_act(x, w, b, r, act="relu"))
    check(graph, {"x": normal(2, 128, 14, 14), "r": normal(1, 64, 14, 14)})


def test_what_is_not_finite_goes_where_it_is_seen() -> None:
    graph = pixel((2, 128, 7, 9), 64)
    checked_with_what_is_no_number(compiled(graph, params_of(graph)), normal(2, 128, 7, 9), (4, 5), (6, 8))


def test_threads_do_not_change_a_bit() -> None:
    graph = pixel((1, 200, 14, 14), 192)
    same_by_threads(partial(compiled, graph, params_of(graph), WIDE), {"x": normal(1, 200, 14, 14)})


@pytest.mark.slow
def test_lanes_that_stay_empty_are_left_to_others() -> None:
    assert not is_panel(pixel((1, 128, 14, 14), 40))
    assert not is_panel(pixel((1, 128, 2, 11), 128))
    assert not is_panel(pixel((1, 127, 14, 14), 128)), "sums too short to be turned round"
    assert not is_panel(pixel((1, 256, 56, 56), 64)), "one panel for many places"
    assert not is_panel(pixel((1, 256, 20, 20), 128)), "places fill vectors as well"
    assert not is_panel(pixel((1, 256, 28, 28), 128, strides=(2, 2))), "two for few places that lie apart"
    assert not is_panel(pixel((1, 1024, 7, 7), 256)), "four, and every thread would lay out all places"


@OTHER_MACHINES
def test_other_machines(vectors: CpuDevice) -> None:
    assert not is_panel(pixel((1, 256, 14, 14), 128), vectors)


@pytest.mark.parametrize("tiny", [False, True])
def test_weights_begin_with_a_line_of_the_caches(tiny: bool) -> None:
    w = normal(64, 37)
    w[3, 4] = 1e-40 if tiny else 1.0
    pack = Packing(1, 64)
    packed = pack(w)
    assert packed.ctypes.data % ALIGNMENT == 0
    (again,) = pack.unpack(packed, [(64, 37)])
    assert (again.view(np.uint32) == w.view(np.uint32)).all()


@pytest.mark.slow
def test_many_channels_are_summed_in_pieces() -> None:
    """Sums of pieces round less than one that goes through all channels, which is written out here."""
    graph = pixel((2, 2048, 7, 7), 64, bias=False)
    rng = np.random.default_rng(0)
    x, w = rng.uniform(size=(2, 2048, 49)).astype(np.float32), rng.uniform(size=(64, 2048)).astype(np.float32)
    (got,) = compiled(graph, {"w": w[..., None, None]}).run({"x": x.reshape(2, 2048, 7, 7)}).values()
    exact = w.astype(np.float64) @ x.astype(np.float64)
    at_once = np.zeros((2, 64, 49), np.float32)
    for c in range(2048):
        # A product and a sum that are rounded once, as a fused one is.
        at_once = (at_once + w[:, c, None].astype(np.float64) * x[:, None, c]).astype(np.float32)
    assert np.std(got.reshape(exact.shape) - exact) < 0.5 * np.std(at_once - exact)

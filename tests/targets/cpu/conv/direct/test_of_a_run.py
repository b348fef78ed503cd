"""Direct convolution by filters that only a run knows, against its meaning in float64."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import Size
from dovetail.ir.leaf import input
from dovetail.kernels.device import CpuDevice
from dovetail.library.conv_bias_act import conv_bias_act
from tests.kernels.convolving import OTHER_MACHINES, WIDE, normal, on_a_machine_of, same_by_threads
from tests.kernels.native import check, native_of

KERNEL = "conv_"


def of_a_run(images: tuple[Size | str, ...], filters: tuple[int, ...], **attrs: Any) -> Value:
    return ops.conv(input("x", f32[images]), input("w", f32[filters]), **attrs)


@pytest.mark.parametrize("filters", [6, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("groups", [1, 3])
def test_every_number_of_filters(filters: int, groups: int) -> None:
    """A register tile that is not full has zeros."""
    images, weights = (2, 6, 9, 13), (filters * groups, 6 // groups, 3, 3)
    feeds = {"x": normal(*images), "w": normal(*weights)}
    check(of_a_run(images, weights, padding=1, groups=groups), feeds, kernel=KERNEL)


@pytest.mark.slow
@OTHER_MACHINES
def test_every_machine(vectors: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine_of(vectors, monkeypatch)
    feeds = {"x": normal(3, 16, 8, 8), "w": normal(16, 16, 3, 3)}
    check(of_a_run((3, 16, 8, 8), (16, 16, 3, 3), padding=1), feeds, kernel=KERNEL)


def test_wide_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    feeds = {"x": normal(3, 16, 8, 8), "w": normal(16, 16, 3, 3)}
    check(of_a_run((3, 16, 8, 8), (16, 16, 3, 3), padding=1), feeds, kernel=KERNEL)


@pytest.mark.parametrize("stride", [1, 2])
def test_filters_are_read_where_they_are(stride: int) -> None:
    """The gradient of an image exchanges filters and channels."""
    x, w = input("x", f32[2, 5, 10, 9]), input("w", f32[5, 12, 3, 3])
    feeds = {"x": normal(2, 5, 10, 9), "w": normal(5, 12, 3, 3)}
    made = ops.conv(x, ops.permute(w, order=(-3, -4, -2, -1)), strides=stride, padding=1)
    check(made, feeds, kernel=KERNEL)


@pytest.mark.slow
def test_taps_that_are_not_equidistant_take_loops() -> None:
    x, w = input("x", f32[2, 5, 10, 9]), input("w", f32[12, 5, 3, 3])
    feeds = {"x": normal(2, 5, 10, 9), "w": normal(12, 5, 3, 3)}
    made = ops.conv(x, ops.permute(w, order=(-4, -3, -1, -2)), padding=1)
    with pytest.raises(AssertionError, match="no conv_"):
        native_of(made, kernel=KERNEL)
    check(made, feeds)


@pytest.mark.parametrize(
    ("images", "filters", "groups"),
    [((2, 6, 10, 9), (6, 1, 3, 3), 6), ((2, 3, 10, 9), (8, 3, 9, 8), 1)],
    ids=["one filter of a group", "fewer results than taps"],
)
def test_pixels_that_are_not_worth_packing_take_loops(
    images: tuple[int, ...], filters: tuple[int, ...], groups: int
) -> None:
    made = of_a_run(images, filters, groups=groups)
    with pytest.raises(AssertionError, match="no conv_"):
        native_of(made, kernel=KERNEL)
    check(made, {"x": normal(*images), "w": normal(*filters)})


@pytest.mark.slow
def test_a_bias_of_a_run() -> None:
    x, w, b = input("x", f32[2, 5, 10, 9]), input("w", f32[12, 5, 3, 3]), input("b", f32[12, 1, 1])
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "padding": (1, 1, 1, 1)}
    feeds = {"x": normal(2, 5, 10, 9), "w": normal(12, 5, 3, 3), "b": normal(12, 1, 1)}
    check(conv_bias_act(x, w, b, act="relu", **attrs), feeds, kernel=KERNEL)


@pytest.mark.slow
def test_sizes_of_a_run() -> None:
    made = of_a_run(("n", 3, "h", "w"), (10, 3, 3, 3), padding=1)
    filters = normal(10, 3, 3, 3)
    check(made, *({"x": normal(n, 3, h, w), "w": filters} for n, h, w in [(1, 3, 40), (4, 17, 5)]), kernel=KERNEL)


def test_one_axis() -> None:
    feeds = {"x": normal(2, 5, 40), "w": normal(9, 5, 4)}
    check(of_a_run((2, 5, 40), (9, 5, 4), padding=2), feeds, kernel=KERNEL)


def test_filters_of_the_next_run_are_packed_again() -> None:
    runner = native_of(of_a_run((2, 5, 10, 9), (12, 5, 3, 3)), kernel=KERNEL).bind({})
    x, w = normal(2, 5, 10, 9), normal(12, 5, 3, 3)
    (one,) = runner.run({"x": x, "w": w}).values()
    (two,) = runner.run({"x": x, "w": 2 * w}).values()
    assert (two == 2 * one).all()


@pytest.mark.slow
def test_threads_give_the_same_bits() -> None:
    graph = Graph.of(of_a_run((4, 5, 30, 29), (20, 5, 3, 3)))
    feeds = {"x": normal(4, 5, 30, 29), "w": normal(20, 5, 3, 3)}
    same_by_threads(lambda threads: native_of(graph, threads, kernel=KERNEL).bind({}), feeds)

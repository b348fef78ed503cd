"""Convolutions with fewer results than taps, as gradients of filters are, against their meaning in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.kernels.device import CpuDevice
from tests.kernels.convolving import WIDE, normal, on_a_machine_of
from tests.kernels.native import check, native_of

AVX2 = CpuDevice(256, 16, ("masked_memory",))
DEVICES = pytest.mark.parametrize("device", [WIDE, AVX2], ids=["avx512", "avx2"])
KERNEL = "few_results"
IMAGES = (5, 3, 9, 11)


def convolved(images: tuple[int, ...], filters: tuple[int, ...], **attrs: Any) -> Value:
    return ops.conv(input("x", f32[images]), input("w", f32[filters]), **attrs)


@pytest.mark.slow
@DEVICES
@pytest.mark.parametrize(
    ("images", "filters", "attrs"),
    [
        (IMAGES, (16, 3, 9, 11), {"padding": 1}),
        (IMAGES, (15, 3, 8, 9), {}),
        ((7, 2, 9, 11), (47, 2, 4, 5), {"padding": (1, 1, 0, 0), "dilations": 2}),
        ((1, 2, 12, 13), (16, 2, 10, 7), {"strides": (2, 3), "padding": 2}),
        ((4, 1, 1, 70), (32, 1, 1, 68), {"padding": (0, 1, 0, 1)}),
        ((3, 2, 40, 41), (16, 2, 40, 41), {"padding": 1}),
    ],
    ids=["around", "lanes left", "dilated", "strided", "one row", "pieces"],
)
def test_every_window(
    device: CpuDevice,
    images: tuple[int, ...],
    filters: tuple[int, ...],
    attrs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_a_machine_of(device, monkeypatch)
    feeds = {"x": normal(*images), "w": normal(*filters)}
    check(convolved(images, filters, **attrs), feeds, kernel=KERNEL)


@DEVICES
def test_operands_are_read_where_they_are(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of filters exchanges images and channels; other strides are read as well."""
    on_a_machine_of(device, monkeypatch)
    x, w = input("x", f32[3, 5, 9, 11]), input("w", f32[3, 16, 9, 11])
    feeds = {"x": normal(3, 5, 9, 11), "w": normal(3, 16, 9, 11)}
    exchanged = (-3, -4, -2, -1)
    made = ops.conv(ops.permute(x, order=exchanged), ops.permute(w, order=exchanged), padding=1)
    check(made, feeds, kernel=KERNEL)
    turned = ops.permute(input("w", f32[16, 3, 11, 9]), order=(-4, -3, -1, -2))
    seen = ops.permute(input("x", f32[5, 9, 11, 3]), order=(-4, -1, -3, -2))
    feeds = {"x": normal(5, 9, 11, 3), "w": normal(16, 3, 11, 9)}
    check(ops.conv(seen, turned, padding=1), feeds, kernel=KERNEL)


@DEVICES
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_parts_give_the_same_bits(device: CpuDevice, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How images are shared between threads changes no sum."""
    made = convolved((6, 4, 9, 8), (32, 4, 9, 8), padding=1)
    feeds = {"x": normal(6, 4, 9, 8), "w": normal(32, 4, 9, 8)}
    found: list[np.ndarray[Any, Any]] = []
    for count in (1, threads):
        on_a_machine_of(replace(device, threads=count), monkeypatch)
        found += native_of(made, count, kernel=KERNEL).bind({}).run(feeds).values()
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize(
    ("images", "filters", "attrs"),
    [
        ((2, 3, 9, 9), (16, 3, 3, 3), {"padding": 1}),
        (IMAGES, (8, 3, 9, 11), {"padding": 1}),
        ((2, 32, 9, 9), (32, 16, 9, 9), {"padding": 1, "groups": 2}),
        ((1, 1, 3, 70), (16, 1, 3, 40), {}),
    ],
    ids=["many results", "half of the lanes", "groups", "a line of results"],
)
def test_what_it_refuses(
    images: tuple[int, ...], filters: tuple[int, ...], attrs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    native = native_of(Graph.of(convolved(images, filters, **attrs)))
    names = [getattr(job, "kernel").name for part in native.sections for job in part.jobs]  # noqa: B009
    assert not any(name.startswith(KERNEL) for name in names)

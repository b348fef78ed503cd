"""Convolutions of bytes: exact against NumPy in int64, for every shape, sign and zero point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, i8, u8
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.ops.convolution import conv
from dovetail.targets.cpu.conv.int8.shape import strip_of
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_of, fitting_tile
from dovetail.targets.cpu.gemm.policy import INT8
from tests.covering import covering
from tests.kernels.bytes import DEVICES, EVERY_DEVICE, EVERY_TILING, SDOT, VNNI, above, image, numbers, run


def attrs_of(axes: int, **given: Any) -> dict[str, Any]:
    ones: dict[str, Any] = {"strides": (1,) * axes, "dilations": (1,) * axes, "padding": (0,) * (2 * axes), "groups": 1}
    return {**ones, **given}


def exact(x: Array, w: Array, attrs: dict[str, Any]) -> Array:
    return np.asarray(conv.compute(x.astype(np.int64), w.astype(np.int64), **attrs))


IMAGES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 5, 7), (3, 1, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((2, 3, 9, 17), (5, 3, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((1, 61, 10, 4), (61, 61, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((1, 8, 12, 33), (40, 8, 1, 1), {}),
    ((1, 7, 12, 33), (33, 7, 1, 1), {"strides": (2, 2)}),
    ((1, 4, 13, 20), (6, 4, 3, 5), {"strides": (2, 3), "padding": (2, 0, 1, 4)}),
    ((1, 4, 13, 20), (6, 4, 3, 3), {"dilations": (2, 3), "padding": (2, 3, 2, 3)}),
    ((2, 6, 8, 9), (12, 2, 3, 3), {"groups": 3, "padding": (1, 1, 1, 1)}),
    ((1, 2, 40, 40), (3, 2, 7, 7), {"padding": (3, 3, 3, 3)}),
    ((1, 3, 4, 4), (2, 3, 4, 4), {}),
    ((0, 3, 4, 4), (2, 3, 2, 2), {}),
    ((1, 5, 50), (9, 5, 3), {"padding": (1, 1)}),
    ((3, 16, 200), (33, 16, 5), {"padding": (8, 0), "dilations": (2,)}),
    ((1, 16, 3), (4, 16, 3), {"padding": (5, 5)}),
    # Four channels of a tap at once, the last ones padded: rows of one pixel to several vectors, tiles of any width.
    *(((1, 11, 5, wide), (9, 11, 3, 3), {"padding": (1, 1, 1, 1)}) for wide in (1, 2, 3, 4, 7, 8, 13, 16, 21, 47, 160)),
    ((2, 13, 9, 11), (35, 13, 3, 2), {"strides": (2, 2), "padding": (1, 0, 1, 1)}),
    ((1, 12, 9, 11), (5, 12, 2, 3), {"dilations": (3, 2), "padding": (3, 2, 0, 2)}),
    ((2, 16, 6, 7), (10, 8, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    ((1, 20, 5, 2), (70, 20, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((1, 61, 10, 4), (122, 61, 1, 1), {}),
    ((1, 5, 1, 2), (3, 5, 1, 1), {}),
    ((2, 12, 31), (17, 12, 7), {"strides": (2,), "padding": (3, 3)}),
]


@pytest.mark.slow
@EVERY_TILING
@pytest.mark.parametrize(("shape", "weights", "given"), IMAGES)
def test_shapes(
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    given: dict[str, Any],
    device: CpuDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attrs = attrs_of(len(shape) - 2, **given)
    y = ops.conv(above(image(u8, *shape), 9), above(leaf.param("w", i8[weights]), None), **attrs)
    x, w = numbers(u8, *shape), numbers(i8, *weights, seed=1)
    (got,) = run(y, [{"x": x}], {"w": w}, device, "int8_conv", monkeypatch)
    assert (got == exact(x.astype(np.int64) - 9, w, attrs)).all()


ZEROS = {u8: (0, 255, 131), i8: (0, -128, 127)}
SIGNS = covering(("none", "one", "filters"), (i8, u8), (u8, i8), (False, True), (3, 8, 11), [*DEVICES], strength=3)


@pytest.mark.slow
@pytest.mark.parametrize(("zeros", "of_weights", "dtype", "of_a_run", "channels", "device"), SIGNS)
def test_signs_zero_points_and_padding(
    zeros: str,
    of_weights: DType,
    dtype: DType,
    of_a_run: bool,
    channels: int,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = {"none": None, "one": (), "filters": (6, 1, 1, 1)}[zeros]
    low = None if shape is None else leaf.param("z", of_weights[shape])
    attrs = attrs_of(2, padding=(1, 2, 1, 0))
    w = numbers(of_weights, 6, channels, 3, 3, seed=1)
    z = np.zeros((), of_weights.numpy) if shape is None else numbers(of_weights, *shape, seed=2).reshape(shape)
    for zero in ZEROS[dtype]:
        x = above(image(dtype, 1, channels, 6, 9), leaf.input("zero", dtype[()]) if of_a_run else zero)
        y = ops.conv(x, above(leaf.param("w", of_weights[6, channels, 3, 3]), low), **attrs)
        feed = {"x": numbers(dtype, 1, channels, 6, 9)}
        expected = exact(feed["x"].astype(np.int64) - zero, w.astype(np.int64) - z, attrs)
        if of_a_run:
            feed["zero"] = np.array(zero, dtype.numpy)
        params = {"w": w} if low is None else {"w": w, "z": z}
        (got,) = run(y, [feed], params, DEVICES[device], "int8_conv", monkeypatch)
        assert (got == expected).all(), f"a zero point of {zero}"


@pytest.mark.slow
@EVERY_DEVICE
@pytest.mark.parametrize(("threads", "channels", "window"), [(1, 5, 3), (3, 5, 3), (1, 8, 3), (3, 8, 3), (1, 8, 1)])
def test_one_compilation_serves_every_size(
    device: CpuDevice, threads: int, channels: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = (window // 2,) * 4
    attrs = attrs_of(2, padding=around, strides=(2, 1) if window == 3 else (1, 1))
    y = ops.conv(
        above(image(u8, symbol("b"), channels, 8, symbol("w")), 3),
        above(leaf.param("w", i8[70, channels, window, window]), None),
        **attrs,
    )
    w = numbers(i8, 70, channels, window, window)
    feeds = [{"x": numbers(u8, b, channels, 8, wide)} for b, wide in ((1, 1), (2, 16), (1, 35), (3, 150))]
    for feed, got in zip(feeds, run(y, feeds, {"w": w}, device, "int8_conv", monkeypatch, threads), strict=True):
        assert (got == exact(feed["x"].astype(np.int64) - 3, w, attrs)).all()


@pytest.mark.slow
@EVERY_DEVICE
def test_images_with_channels_last_and_steps_on_the_sums(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ops.permute(image(u8, 1, 6, 11, 5), order=(-4, -1, -3, -2))
    w, attrs = numbers(i8, 7, 5, 3, 3), attrs_of(2, padding=(1, 1, 1, 1))
    b = leaf.param("b", f32[7, 1, 1])
    sums = ops.conv(above(x, 8), above(leaf.param("w", i8[7, 5, 3, 3]), None), **attrs)
    y: Value = ops.cast(sums, dtype=f32) * 0.25 + b
    feed, bias = {"x": numbers(u8, 1, 6, 11, 5)}, np.arange(7, dtype=np.float32).reshape(7, 1, 1)
    (got,) = run(y, [feed], {"w": w, "b": bias}, device, "int8_conv", monkeypatch)
    expected = exact(feed["x"].transpose(0, 3, 1, 2).astype(np.int64) - 8, w, attrs)
    assert (got == (expected * 0.25 + bias).astype(np.float32)).all()


@pytest.mark.slow
@EVERY_DEVICE
def test_weights_that_are_constants(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    attrs = attrs_of(2, padding=(1, 1, 1, 1))
    w = np.concatenate([numbers(i8, 4, 9, 3, 3).astype(np.int32), numbers(u8, 3, 9, 3, 3).astype(np.int32)])
    y = ops.conv(above(image(u8, 1, 9, 6, 7), 9), leaf.constant(w), **attrs)
    x = numbers(u8, 1, 9, 6, 7)
    (got,) = run(y, [{"x": x}], {}, device, "int8_conv", monkeypatch)
    assert (got == exact(x.astype(np.int64) - 9, w, attrs)).all()


@pytest.mark.parametrize(("pixels", "nr"), [(10, 12), (40, 8), (16, 16), (608, 16), (24, 12)])
def test_narrow_tiles_leave_few_lanes_empty(pixels: int, nr: int) -> None:
    tile = byte_tile_of(SDOT)
    assert tile is not None
    assert fitting_tile(tile, 64, pixels).nr == nr


@pytest.mark.parametrize("device", [SDOT, VNNI])
def test_blocks_of_filters_are_whole_tiles(device: CpuDevice) -> None:
    tile = byte_tile_of(device)
    assert tile is not None
    assert all(INT8.filters % mr == 0 for mr, _ in ((tile.mr, 0), *tile.shape.others))


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("pixels", [1, 10, 40, 152, 608, 3136])
def test_strips_are_equally_long_and_shared(pixels: int, threads: int) -> None:
    for filters in (8, 61, 512):
        tile = byte_tile_of(SDOT)
        assert tile is not None
        strip = strip_of(tile, pixels, 1, filters, threads)
        assert strip % tile.nr == 0 and tile.nr <= strip <= INT8.strip
        panels, length = -(-pixels // tile.nr), strip // tile.nr
        count = -(-panels // length)
        assert length == -(-panels // count), "no strip is longer than it must be"
    assert strip_of(tile, symbol("p"), 1, 8, threads) == INT8.strip // tile.nr * tile.nr

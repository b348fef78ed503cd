"""Contractions of bytes for tests: operands with their zero points, compiled code, and a device to run it for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, i8, i32
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.passes.widen import widen_inside
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_of
from dovetail.targets.cpu.isa import host_device
from tests.kernels.native import native_of

VNNI = CpuDevice(512, 32, ("vnni",), emulated=True)
SDOT = CpuDevice(128, 32, ("int8_dot",), emulated=True)
DEVICES = {"here": host_device(), "vnni": VNNI, "sdot": SDOT}
EVERY_DEVICE = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)


def tilings() -> list[str]:
    """The devices without an emulated one whose tiles are those of this machine: sizes and remainders are the same."""
    here = byte_tile_of(DEVICES["here"])
    shapes = {name: byte_tile_of(device) for name, device in DEVICES.items()}
    same = [name for name, tile in shapes.items() if here is not None and tile is not None and tile.shape == here.shape]
    return [name for name in DEVICES if name == "here" or name not in same]


EVERY_TILING = pytest.mark.parametrize("device", [DEVICES[name] for name in tilings()], ids=tilings())


def numbers(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Bytes, the smallest and the largest among them."""
    low, high = (-128, 128) if dtype is i8 else (0, 256)
    found = np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype.numpy)
    found.reshape(-1)[:1], found.reshape(-1)[-1:] = low, high - 1
    return found


def above(x: Value, zero: Value | int | None) -> Value:
    """Bytes minus a zero point, in i32."""
    wide = ops.cast(x, dtype=i32)
    if zero is None:
        return wide
    return wide - (leaf.scalar(zero, i32) if isinstance(zero, int) else ops.cast(zero, dtype=i32))


def image(dtype: DType, *shape: Size) -> Value:
    return leaf.input("x", dtype[shape])


def run(
    y: Value,
    feeds: Sequence[Mapping[str, Array]],
    params: Mapping[str, Array],
    device: CpuDevice,
    kernel: str,
    monkeypatch: pytest.MonkeyPatch,
    threads: int | None = 1,
) -> list[Array]:
    """The result for each of the feeds by the byte kernel for a device."""
    if byte_tile_of(device) is None:
        pytest.skip("this machine has no dot product of bytes")
    monkeypatch.setattr(backend, "host_device", lambda: device)
    graph = widen_inside(Graph.of(y), CPU).graph
    runner = native_of(graph, threads, kernel=kernel, served=()).bind(params)
    return [next(iter(runner.run(feed).values())) for feed in feeds]

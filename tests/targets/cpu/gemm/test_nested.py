"""Bytes with two codes that fast products multiply as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32, u8
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel
from dovetail.targets.cpu.gemm.block_pack import spelled
from dovetail.targets.cpu.gemm.blocks import block_dot
from dovetail.targets.cpu.gemm.nested import LEVELS, NESTED, nest, unnest
from dovetail.targets.cpu.isa import host_device
from tests.block_arrays import random_blocks
from tests.kernels.bytes import SDOT

K, N = 512, 40
DEVICES = {"here": host_device(), "sdot": SDOT}


@pytest.mark.parametrize("name", NESTED)
def test_words_come_back(name: str) -> None:
    count = FORMATS[name].bytes // 4 - len(FORMATS[name].halves) // 2
    words = np.random.default_rng(0).integers(0, 1 << 32, (3, count, 5), np.uint32)
    turned = words.copy()
    nest(name, turned)
    assert (turned != words).any(axis=(0, 2)).tolist() == [i >= NESTED[name] for i in range(count)]
    unnest(name, turned)
    assert turned.tobytes() == words.tobytes()


def rounded(x: Array) -> Array:
    """Activations as a fast product sees them: in each group the second half is rounded first."""
    groups = x.reshape(-1, 32)
    most = np.abs(groups).max(axis=1, keepdims=True)
    inverse = np.float32(LEVELS) / most
    high = np.rint(groups[:, 16:] * inverse)
    low = np.rint(groups[:, :16] * inverse - high * np.float32(0.0625))
    assert max(np.abs(low).max(), np.abs(high).max()) <= 127
    scale = most.astype(np.float64) / LEVELS
    return (np.concatenate([low + high / 16.0, high], axis=1) * scale).reshape(x.shape)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("largest", [False, True], ids=["normal", "largest"])
@pytest.mark.parametrize("name", NESTED)
def test_products_are_those_of_rounded_activations(
    name: Any, largest: bool, device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one row and for several; numbers as large as others of their group stay within a byte."""
    dot = block_dot(device)
    if dot is None or not BlockKernel.of(name, dot, exact=False, registers=32).is_nested:
        pytest.skip("this machine multiplies codes one by one")
    monkeypatch.setattr(backend, "host_device", lambda: device)
    blocks = random_blocks(name, N, K)
    w = ops.permute(library.dequantise_blocks(leaf.param("w", u8[blocks.shape]), format=name), order=(-1, -2))
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), K]) @ w})
    program = dovetail.compile(graph, cache="off", precision="fast").bind({"w": blocks})
    codes, scale, low = (None if part is None else part.astype(np.float64) for part in spelled(name, blocks))
    assert codes is not None and scale is not None
    matrix = codes.reshape(N, -1, 32) * scale[..., None] + (0.0 if low is None else low[..., None])
    x = np.random.default_rng(1).normal(size=(11, K)).astype(np.float32)
    x = np.sign(x) if largest else x
    wanted = rounded(x) @ matrix.reshape(N, K).T
    # Scaled with 1.5 * 2^23, sums are off by a twentieth of what 1 makes; lows of two levels multiply sums of 14 bits.
    near = (1e-3 if FORMATS[name].levels == 3 else 5e-5) * np.abs(wanted).max()
    for m in (1, 11):
        assert np.abs(program.run({"x": x[:m]})["y"] - wanted[:m]).max() <= near

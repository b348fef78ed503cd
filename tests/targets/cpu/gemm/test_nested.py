"""Bytes with two codes that fast products multiply as they are."""

from __future__ import annotations

import re
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
from dovetail.targets.cpu.gemm.blocks.kernel import BlockKernel, block_dot
from dovetail.targets.cpu.gemm.blocks.pack import spelled
from dovetail.targets.cpu.gemm.blocks.schedule import panel_function
from dovetail.targets.cpu.gemm.blocks.words import LEVELS, NESTED, nest, unnest
from dovetail.targets.cpu.isa import Host, host_device
from tests.block_arrays import random_blocks
from tests.kernels.bytes import SDOT
from tests.kernels.machines import code_for, loops, written_to_stack

K, N = 512, 40
DEVICES = {"here": host_device(), "sdot": SDOT}
NEON = Host("aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod", 128, 32)


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


@pytest.mark.slow
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


@pytest.mark.parametrize("k", [32, 160])
@pytest.mark.parametrize("name", ["q4_0", "q4_1"])
def test_one_row_of_few_groups(name: Any, k: int) -> None:
    """Low halves of a group are multiplied before it comes: there is none after the last."""
    dot = block_dot(DEVICES["here"])
    if dot is None or not BlockKernel.of(name, dot, exact=False, registers=32).is_nested:
        pytest.skip("this machine multiplies codes one by one")
    blocks = random_blocks(name, N, k)
    w = ops.permute(library.dequantise_blocks(leaf.param("w", u8[blocks.shape]), format=name), order=(-1, -2))
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), k]) @ w})
    program = dovetail.compile(graph, cache="off", precision="fast").bind({"w": blocks})
    x = np.random.default_rng(k).normal(size=(3, k)).astype(np.float32)
    codes, scale, low = spelled(name, blocks)
    matrix = codes.reshape(N, -1, 32) * scale[..., None].astype(np.float64) + (0.0 if low is None else low[..., None])
    wanted = rounded(x) @ matrix.reshape(N, k).T
    together = program.run({"x": x})["y"]
    for row in range(3):
        alone = program.run({"x": x[row : row + 1]})["y"][0]
        assert np.abs(alone - wanted[row]).max() <= 5e-5 * np.abs(wanted).max()
        assert alone.tobytes() == together[row].tobytes()


@pytest.mark.parametrize("name", ["q4_0", "q4_1"])
def test_one_row_multiplies_bytes_among_low_halves(name: str) -> None:
    """Of two products one takes a byte as it is: no more than one instruction is between them."""
    dot = block_dot(NEON.device)
    assert dot is not None
    kernel = BlockKernel.of(name, dot, exact=False, registers=NEON.vector_registers)
    code = code_for(NEON, panel_function(kernel, 1)[0].text, optimize=False)
    hottest = max(loops(code), key=lambda body: body.count("sdot"))
    found = "".join(["." if word == "sdot" else "&" for word in re.findall(r"\t(sdot|and)\tv", hottest)])
    assert found.count(".") == 2 * found.count("&") == kernel.group // 4 * kernel.vectors
    assert "&&" not in found and "..." not in found
    assert not written_to_stack(hottest)

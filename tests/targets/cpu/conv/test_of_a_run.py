"""Which convolutions by filters of a run are multiplied in place, and which as products of copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
import dovetail.targets.cpu.claims
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import Size
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.of_a_run import multiplies_in_place
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.convolving import WIDE, normal, on_a_machine_of

NEON = CpuDevice(128, 32, ("fma_by_lane",))
AVX2 = CpuDevice(256, 16, ("masked_memory",))
X86 = pytest.mark.parametrize("device", [WIDE, AVX2], ids=["avx512", "avx2"])


def in_place(device: CpuDevice, images: tuple[Size | str, ...], filters: tuple[int, ...], **attrs: Any) -> bool:
    made = ops.conv(dovetail.input("x", f32[images]), dovetail.input("w", f32[filters]), **attrs)
    return multiplies_in_place(made, device)


@X86
def test_rows_and_gradients_on_x86(device: CpuDevice) -> None:
    assert in_place(device, (32, 64, 8, 8), (64, 64, 3, 3), padding=1)
    assert in_place(device, (16, 32, 16, 16), (16, 32, 16, 16), padding=1), "a gradient of filters"
    assert not in_place(device, (32, 64, 4, 4), (64, 64, 3, 3), padding=1), "rows are short"
    assert not in_place(device, (1, 64, 8, 8), (64, 64, 3, 3), padding=1), "few pixels do not pay for packing"
    assert not in_place(device, (32, 512, 8, 8), (512, 512, 3, 3), padding=1), "a thread would pack 9 MB"
    assert not in_place(device, (32, 64, 8, 8), (64, 64, 1, 1)), "a product without copies"
    assert not in_place(device, ("n", 64, 8, 8), (64, 64, 3, 3), padding=1), "sizes are known at run time only"
    assert not in_place(device, (5, 3, 9, 9), (8, 3, 9, 9), padding=1), "half of the lanes are empty"


def test_neon_keeps_products_of_short_rows() -> None:
    """Its broadcasts of weights take the slots of products."""
    assert not in_place(NEON, (32, 32, 16, 16), (32, 32, 3, 3), padding=1)
    assert not in_place(NEON, (16, 32, 32, 32), (16, 32, 32, 32), padding=1)
    assert in_place(NEON, (32, 16, 32, 32), (16, 16, 3, 3), padding=1)


@pytest.mark.slow
@X86
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_and_its_gradients_copy_no_windows(
    device: CpuDevice, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_machine_of(device, monkeypatch)
    monkeypatch.setattr(dovetail.targets.cpu.claims, "host_device", lambda: device)
    x, w = dovetail.input("x", f32[16, 16, 16, 16]), dovetail.input("w", f32[16, 16, 3, 3])
    y = ops.conv(x, w, strides=stride, padding=1)
    seed = dovetail.input("s", y.tensor)
    dx, dw = dovetail.graphs.gradient(y, [x, w], seed)
    graph = Graph.of({"y": y, "dx": dx, "dw": dw}, inputs=(x, w, seed))
    program = dovetail.compile(graph, target="cpu", threads=1, cache="off")
    assert not [step for step in program.plan.steps if step.value.op in (ops.concat, ops.matmul)]
    feeds = {"x": normal(16, 16, 16, 16), "w": normal(16, 16, 3, 3)}
    feeds["s"] = normal(16, 16, 16 // stride, 16 // stride)
    found = program.run(feeds)
    for name, expected in evaluate(graph, feeds, lift=True).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-6 * np.abs(expected).max(), err_msg=name)

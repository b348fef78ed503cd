"""Kernels priced by the variant that serves them on this host; the built-in machine prices ops alike everywhere."""

from __future__ import annotations

import math

import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32, i8, i32, u8
from dovetail.ir.leaf import input, param
from dovetail.report.record import Kernel
from dovetail.runtime.compile import explain
from dovetail.settings import Settings
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_of
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.measure.calibration import machine_of

CONV = Graph.of(ops.relu(ops.conv(input("x", f32[1, 64, 56, 56]), param("w", f32[64, 64, 3, 3]), padding=1)))
FLOPS = 2 * 56 * 56 * 64 * 64 * 9


def kernel_of(graph: Graph, *, strict: bool = False) -> Kernel:
    (found,) = (k for k in explain(graph, strict=strict, cache="off").kernels if k.phase == "run")
    return found


@pytest.mark.slow
def test_winograd_is_priced_by_its_own_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    """36 products make 4 × 4 pixels, where the op has 9 for each: a quarter, and what the transforms add."""
    monkeypatch.delenv("DOVETAIL_MACHINE")
    fast, plain = kernel_of(CONV), kernel_of(CONV, strict=True)
    assert fast.form.startswith("winograd") and not plain.form.startswith("winograd")
    assert fast.flops == plain.flops and fast.flops >= FLOPS, "reports tell the arithmetic of the op"
    peak = machine_of(Settings(cache="off")).flops_per_second
    assert FLOPS / 4 / peak < fast.floor_seconds < FLOPS / peak <= plain.floor_seconds
    assert fast.floor_seconds < fast.seconds < plain.seconds


def test_the_built_in_machine_knows_no_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_MACHINE", "built-in")
    fast, plain = kernel_of(CONV), kernel_of(CONV, strict=True)
    assert fast.form != plain.form
    assert math.isclose(fast.seconds, plain.seconds) and math.isclose(fast.floor_seconds, plain.floor_seconds)


def test_products_of_bytes_have_the_peak_and_the_traffic_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    if byte_tile_of(host_device()) is None:
        pytest.skip("no dot product of bytes")
    monkeypatch.delenv("DOVETAIL_MACHINE")
    machine = machine_of(Settings(cache="off", threads=1))
    for rows in (512, 1):
        x, w = input("x", u8[rows, 768]), param("w", i8[768, 768])
        sums = ops.cast(x, dtype=i32) @ ops.cast(w, dtype=i32)
        kernels = explain(Graph.of(ops.cast(sums, dtype=f32) * 0.5), cache="off", threads=1).kernels
        (kernel,) = (k for k in kernels if k.phase == "run")
        dense = 2 * rows * 768 * 768
        work = dense / machine.peak(i8, "contract") + (kernel.flops - dense) / machine.flops_per_second
        # Packed weights take a byte each.
        most = 768 * (768 + 5 * rows) / machine.bytes_per_second
        assert work <= kernel.floor_seconds <= max(work, most) and kernel.floor_seconds < kernel.seconds

"""Floats of 8 bits on GPUs: casts by an instruction where the device has it and by a table elsewhere, to equal bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, bf16, f8e4m3fn, f8e5m2, f16, f32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.matrix_instruction import MMA
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.select import TABLE
from dovetail.targets.gpu.steps import locations_of
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.judged import run_in_lockstep

AMPERE = replace(H200, architecture="sm_80", matrix_instructions=MMA, converts_fp8=False)
EIGHT, WIDE = (f8e4m3fn, f8e5m2), (f16, bf16, f32)


def _cast(source: DType, target: DType, count: int = 256, *, saturate: bool = True) -> Plan:
    x = input("x", source[count])
    y = ops.cast(x, dtype=target) if saturate else ops.cast_f8(x, dtype=target, saturate=False)
    return make_plan(Graph.of({"y": y}), target="cuda")


def _kernel(plan: Plan, device: GpuDevice) -> GpuKernel:
    ((_, made),) = kernels_of(plan, device=device)
    return made


def _numbers(dtype: DType) -> Array:
    """Every number of 8 bits, what is half way between two of them and around that, and what is out of range."""
    eight = np.arange(256, dtype=np.uint8)
    every = np.concatenate([eight.view(d.numpy).astype(np.float64) for d in EIGHT])
    finite = np.unique(every[np.isfinite(every)])
    halves = (finite[1:] + finite[:-1]) / 2
    around = np.concatenate([halves, halves * (1 + 2.0**-9), halves * (1 - 2.0**-9)])
    beyond = [448, 464, 480, 1e4, 57344, 61440, 65000, 1e-8, 2.0**-17, np.inf, np.nan, 0.0]
    with np.errstate(over="ignore"):
        return np.concatenate([finite, around, beyond, np.negative(beyond)]).astype(dtype.numpy)


def _bits(x: Array) -> Array:
    """Bits, where all that is not a number is one."""
    return np.where(np.isnan(x.astype(np.float32)), 0x7F, x.view(np.uint8))


@pytest.mark.parametrize("wide", WIDE, ids=lambda d: d.name)
@pytest.mark.parametrize("eight", EIGHT, ids=lambda d: d.name)
def test_instructions_and_tables_give_equal_numbers(eight: DType, wide: DType) -> None:
    every = np.arange(256, dtype=np.uint8).view(eight.numpy)
    for device, name in ((H200, "convert"), (AMPERE, "table")):
        up = _cast(eight, wide)
        assert _kernel(up, device).kernel.name == name
        found = run_in_lockstep(up, {"x": every}, None, device)["y"]
        np.testing.assert_array_equal(found.astype(np.float32), every.astype(np.float32))
        numbers = _numbers(wide)
        down = _cast(wide, eight, len(numbers))
        assert _kernel(down, device).kernel.name == name
        most = 448.0 if eight is f8e4m3fn else 57344.0
        # The wide numbers are exact in f32, from which ml_dtypes rounds once.
        wanted = np.clip(numbers.astype(np.float32), -most, most).astype(eight.numpy)
        found = run_in_lockstep(down, {"x": numbers}, None, device)["y"]
        np.testing.assert_array_equal(_bits(found), _bits(wanted))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_90a", "sm_100"])
def test_they_assemble_everywhere(architecture: str, tmp_path: Path) -> None:
    device = replace(AMPERE if architecture in ("sm_80", "sm_89") else H200, architecture=architecture)
    for eight in EIGHT:
        for plan in (_cast(eight, f16), _cast(bf16, eight)):
            made = _kernel(plan, device)
            assert ("llvm.nvvm" in made.text and "x2" in made.text) == device.converts_fp8
            told = assembled(made, architecture, tmp_path)
            assert not spilled_bytes(told), told


def test_the_reason_is_told_where_a_table_converts() -> None:
    for plan, device, reason in (
        (_cast(f16, f8e4m3fn), AMPERE, "device_converts_fp8"),
        (_cast(f16, f8e4m3fn, saturate=False), H200, "cast_saturates"),
    ):
        (step,) = plan.phase("run")
        told = TABLE.considered(step, locations_of(plan), device, CLAIMS.machine)
        assert reason in str(told), told
        assert _kernel(plan, device).kernel.name == "table"


def test_products_of_eight_bits_run_by_wider_numbers() -> None:
    """The weights and the rows are cast to bf16, which holds them exactly, and multiplied on tensor cores."""
    x, w = input("x", f8e4m3fn[16, 32]), input("w", f8e4m3fn[32, 16])
    y = library.linear(ops.cast(x, dtype=bf16), ops.cast(w, dtype=bf16), input("b", bf16[16]), act="relu")
    plan = make_plan(Graph.of({"y": y}), target="cuda")
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=s).astype(f8e4m3fn.numpy) for n, s in (("x", (16, 32)), ("w", (32, 16)))}
    feeds["b"] = rng.normal(size=16).astype(bf16.numpy)
    wide = {n: a.astype(np.float64) for n, a in feeds.items()}
    wanted = np.maximum(wide["x"] @ wide["w"] + wide["b"], 0.0)
    assert {made.kernel.name for _, made in kernels_of(plan)} == {"convert", "contract"}
    found = run_in_lockstep(plan, feeds)["y"].astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-8, atol=1e-3)

"""`--precision bf16`: commands tell what is rounded, and refuse where nothing multiplies bf16."""

from __future__ import annotations

import pytest

from dovetail.targets.cpu import backend
from tests.cli.commands import Shell
from tests.targets.cpu.gemm.test_bf16 import NEITHER, PAIRS


@pytest.fixture
def _pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: PAIRS)


@pytest.mark.slow
@pytest.mark.usefixtures("_pairs")
def test_reports_tell_what_is_rounded(shell: Shell, layer: str) -> None:
    told = "both factors to bf16: products are about 0.24% off float64"
    assert f"ROUNDED   1 × {told}" in shell("explain", layer, "--precision=bf16").out
    assert "ROUNDED" not in shell("explain", layer).out
    assert f"it rounds {told}" in shell("why", layer, "%0", "--precision=bf16").out
    kernel = shell("explain", layer, "--precision=bf16", "--json").data["kernels"][0]
    assert (kernel["rounding"], kernel["error"]) == ("both factors to bf16", None)


@pytest.mark.slow
@pytest.mark.usefixtures("_pairs")
def test_outputs_may_be_as_far_apart_as_bf16_is(shell: Shell, layer: str) -> None:
    told = shell("verify", layer, "--precision=bf16", "--json").data["outputs"]
    found = {output["where"]: output for output in told}
    assert found["float64"]["tolerance"] < 1e-3 and 1e-5 < found["program"]["deviation"] < 2**-7
    strict = shell("verify", layer, "--precision=bf16", "--tolerance=1e-5")
    assert strict.code == 5 and "y by" in strict.err


def test_machines_without_products_of_bf16_refuse(shell: Shell, layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: NEITHER)
    assert "neither AMX-BF16 nor AVX512-BF16" in shell.fails(1, "explain", layer, "--precision=bf16")

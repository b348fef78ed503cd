"""The programs that compute-sanitizer watches have the kernels that their names promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import dovetail
from dovetail.kernels.gpu.tile import H200
from dovetail.targets.cuda.driver import Driver
from dovetail.targets.cuda.run import residency_of
from tests.targets.cuda import sanitized
from tests.targets.cuda.simulated import SimulatedDriver


def test_a_program_without_the_kernel_of_its_name_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(device: Callable[[], Driver], cache: str) -> bytes:
        return b""

    monkeypatch.setattr(sanitized, "PROGRAMS", {"nothing": nothing})
    monkeypatch.setattr(sanitized.Module, "function", sanitized.Module.function)
    assert sanitized.run("nothing", "off", SimulatedDriver) == 0
    with pytest.raises(AssertionError, match="0 persistent kernels"):
        sanitized.run("nothing-persistent", "off", SimulatedDriver)


def test_the_layers_of_its_decoder_are_passes() -> None:
    device = replace(H200, cluster=8, dependent_launches=True, bulk_copies=True, copying_warp=True, cooperative="on")
    plan = dovetail.compile(sanitized.step_graph(), target="cuda", cache="off").plan
    found = residency_of(plan, device)
    assert found is not None and found.refused is None and found.passes == sanitized.LAYERS

"""The programs that compute-sanitizer watches have the kernels that their names promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import dovetail
from dovetail.kernels.gpu.tile import H200
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import AllocBarriers, AwaitPhase, SubGrid
from dovetail.kernels.loops.resident_stream import THREADS
from dovetail.targets.cuda.driver import Driver
from dovetail.targets.cuda.run import steps_of
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


def test_the_layers_of_its_decoder_are_passes_whose_threads_arrive_and_wait_themselves() -> None:
    """Racecheck takes no other thread's word for it that copies are over, or may start."""
    device = replace(H200, cluster=8, dependent_launches=True, bulk_copies=True, copying_warp=True, cooperative="on")
    plan = dovetail.compile(sanitized.step_graph(), target="cuda", cache="off").plan
    every = [made.kernel for _, kernels in steps_of(plan, device=device) for made in kernels or ()]
    (kernel,) = [kernel for kernel in every if kernel.counter]
    assert kernel.launch is not None and kernel.passes == sanitized.LAYERS
    threads = kernel.launch.block - THREADS
    waits: dict[bool, set[str]] = {True: set(), False: set()}
    for s in everything(kernel.body):
        if isinstance(s, SubGrid):
            waits[s.threads == threads] |= {x.barrier for x in everything(s.body) if isinstance(x, AwaitPhase)}
    assert waits[False] and waits[False] <= waits[True]
    free = [s for s in kernel.body if isinstance(s, AllocBarriers) and s.name.startswith(("free", "last"))]
    assert free and all(one.arrivals == threads for one in free)

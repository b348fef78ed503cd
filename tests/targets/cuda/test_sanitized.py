"""The programs that compute-sanitizer watches have the kernels that their names promise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import pytest

import dovetail
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import AllocBarriers, AwaitPhase, CopyBulk, Kernel, SubGrid
from dovetail.kernels.loops.persistent.stream import THREADS
from dovetail.models import LlamaShape
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.driver.driver import Driver
from dovetail.targets.cuda.runs.run import steps_of
from tests.targets.cuda import sanitized
from tests.targets.cuda.replays import has_persistent, replay
from tests.targets.cuda.simulated import SimulatedDriver


def test_a_program_without_the_kernel_of_its_name_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(device: Callable[[], Driver], cache: str) -> bytes:
        return b""

    monkeypatch.setattr(sanitized, "PROGRAMS", {"nothing": nothing})
    monkeypatch.setattr(sanitized.LoadedModule, "function", sanitized.LoadedModule.function)
    assert sanitized.run("nothing", "off", SimulatedDriver) == 0
    with pytest.raises(AssertionError, match="0 persistent kernels"):
        sanitized.run("nothing-persistent", "off", SimulatedDriver)


@pytest.mark.exhaustive
def test_replays_of_a_persistent_kernel_leave_the_device_as_it_was() -> None:
    """What a card runs a thousand times."""
    device = SimulatedDriver()
    device.description = described = replace(device.description, multiprocessors=16)
    assert has_persistent(device)
    replay(2, lambda: device)
    assert device.description is described


def test_a_process_that_prints_much_does_not_wait_until_others_have_ended(tmp_path: Path) -> None:
    """A tool that cannot print takes no reports from the device, and the kernel stops."""
    there = tmp_path / "printed"
    awaits = f"import os, time\nwhile not os.path.exists({str(there)!r}): time.sleep(0.01)"
    prints = f"print('x' * 300_000, flush=True); open({str(there)!r}, 'w').close(); print('end')"
    started = [
        sanitized.Running.of([sys.executable, "-c", text], tmp_path / f"{i}.txt")
        for i, text in enumerate((awaits, prints))
    ]
    end = time.monotonic() + 20
    (first, status), (second, other) = [one.ended(end) for one in started]
    assert (first, status, other) == ("", 0, 0) and len(second) == 300_005


def test_a_process_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    started = sanitized.Running.of([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "late.txt")
    assert started.ended(time.monotonic()) == ("", None)


@cache
def _persistent(shape: LlamaShape) -> tuple[Kernel, int]:
    """The kernel of a decoder's step, and the threads of its blocks that compute."""
    device = replace(H200, cluster=8, dependent_intensity=inf, bulk_copies=True, copying_warp=True, cooperative="on")
    plan = dovetail.compile(sanitized.step_graph(shape), target="cuda", cache="off").plan
    every = [made.kernel for _, kernels in steps_of(plan, device=device) for made in kernels or ()]
    (kernel,) = [kernel for kernel in every if kernel.counter]
    assert kernel.launch is not None and kernel.passes == sanitized.LAYERS
    return kernel, kernel.launch.block - THREADS


@pytest.mark.exhaustive
def test_one_decoder_has_parts_of_fewer_threads_and_the_other_has_none() -> None:
    """What racecheck reports of the first alone is known to be no race."""
    for shape, fewest in ((sanitized.SHAPE, 256), (sanitized.NARROW, sanitized.KNOWN.threads)):
        kernel, threads = _persistent(shape)
        assert threads == 256
        assert min([s.threads for s in everything(kernel.body) if isinstance(s, SubGrid)]) == fewest


def _reported(*hazards: tuple[str, int, int], displayed: int | None = None, kernel: str = "resident") -> str:
    """What racecheck prints of hazards: their kind, and the threads that store and load."""
    text = "ran 1 persistent kernels\n"
    for kind, stored, loaded in hazards:
        text += f"""========= Error: Potential {kind} hazard detected at __shared__ 0xc800 in block (20,0,0) :
=========     Write Thread ({stored},0,0) at {kernel}+0x51f0
=========     Read Thread ({loaded},0,0) at {kernel}+0x5a40
=========     Current Value : 0
========= \n"""
    count = len(hazards) if displayed is None else displayed
    return f"{text}========= RACECHECK SUMMARY: {count} hazards displayed ({count} errors, 0 warnings)\n"


def _known(output: str, name: str = "narrow-persistent", kind: str = "racecheck", status: int = 86) -> str:
    return sanitized.known(name, kind, output, status)


def test_the_known_report_is_told_by_its_name() -> None:
    found = _known(_reported(("RAW", 64, 196), ("RAW", 32, 160)))
    assert found == f"known, and no race: {sanitized.KNOWN.name} (2 hazards)"


def test_a_program_that_does_not_end_says_why() -> None:
    output = "Traceback\nAssertionError: programs are equal to the bit\n" + _reported(("RAW", 64, 196))
    output = output.replace("ran 1 persistent kernels\n", "")
    assert sanitized.last_words(output) == "Traceback | AssertionError: programs are equal to the bit"


def test_every_other_report_is_a_failure() -> None:
    fine = ("RAW", 64, 196)
    others = [("RAW", 64, 100), ("RAW", 196, 64), ("RAW", 160, 196), ("WAR", 64, 196), ("WAW", 64, 196)]
    for other in others:
        assert not _known(_reported(fine, other)), other
    assert not _known(_reported(fine, kernel="attend"))
    assert not _known(_reported(fine, displayed=2)), "one of them was not understood"
    assert not _known(_reported()), "it failed for another reason"
    assert not _known(_reported(fine), name="step-persistent")
    assert not _known(_reported(fine), kind="memcheck")
    assert not _known(_reported(fine), status=1)


def test_the_layers_of_its_decoder_are_passes_whose_threads_arrive_and_wait_themselves() -> None:
    """Racecheck takes no other thread's word for it that copies are over, or may start."""
    kernel, threads = _persistent(sanitized.NARROW)
    waits: dict[bool, set[str]] = {True: set(), False: set()}
    for s in everything(kernel.body):
        if isinstance(s, SubGrid):
            waits[s.threads == threads] |= {x.barrier for x in everything(s.body) if isinstance(x, AwaitPhase)}
    assert waits[False] and waits[False] <= waits[True]
    free = [s for s in kernel.body if isinstance(s, AllocBarriers) and s.name.startswith(("free", "last"))]
    assert free and all(one.arrivals == threads for one in free)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_a_decoder_in_blocks_has_no_parts_of_fewer_threads(kind: str) -> None:
    """None of racecheck's reports is taken for the known one."""
    device = replace(H200, cluster=8, dependent_intensity=inf, bulk_copies=True, copying_warp=True, cooperative="on")
    plan = dovetail.compile(sanitized.blocks_graph(kind), target="cuda", cache="off").plan
    every = [made.kernel for _, kernels in steps_of(plan, device=device) for made in kernels or ()]
    (kernel,) = [kernel for kernel in every if kernel.counter]
    assert {s.threads for s in kernel.body if isinstance(s, SubGrid)} == {256}
    assert any(isinstance(s, CopyBulk) for s in everything(kernel.stream))

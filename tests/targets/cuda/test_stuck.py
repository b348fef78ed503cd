"""A persistent kernel whose blocks wait in vain says where, although its context is lost with it."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library
from dovetail.errors import DeviceError
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import GridBarrier, Receive
from dovetail.kernels.loops.persistent.passes import part_in
from dovetail.kernels.loops.persistent.stuck import PASS, PLACE, Wait, wait_of, word
from dovetail.models import random_weights
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.api import STUCK, error_of
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs import runner
from dovetail.targets.cuda.runs.run import steps_of
from tests.targets.cuda.fake_driver import FakeLibrary
from tests.targets.cuda.simulated import SimulatedDriver, target_of

FEW = replace(H200, multiprocessors=3, cluster=8, dependent_intensity=inf, cooperative="on")


def _layers(width: int = 128) -> Graph:
    x = input("x", bf16[1, width])
    for layer in range(4):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[width]), eps=1e-6)
        x = x + normed @ param(f"w{layer}", bf16[width, width])
    return Graph.of({"y": x})


def test_a_word_has_the_part_the_pass_and_the_block() -> None:
    written = word(5) | 27 << PASS | 131
    assert wait_of(written) == Wait(5, 27, 131, at_barrier=False)
    assert str(wait_of(written)) == "block 131 waited in pass 27 for what other blocks send to part 5"
    assert str(wait_of(word(1, at_barrier=True))) == "block 0 waited in pass 0 for the barrier of the grid after part 0"
    assert wait_of(0) is None


@pytest.mark.slow
@pytest.mark.parametrize("sends", [True, False], ids=["words", "barriers"])
def test_every_wait_writes_its_own_part(sends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sends:
        monkeypatch.setattr("dovetail.targets.gpu.persistent.exchange.SIZES", ())
    plan = make_plan(_layers(), target=CLAIMS)
    (made,) = [m for _, kernels in steps_of(plan, device=FEW) for m in kernels or () if m.kernel.counter]
    wanted, parts = list[int](), 0
    for s in made.kernel.body:
        wanted += [word(parts) for x in everything((s,)) if isinstance(x, Receive)]
        if isinstance(s, GridBarrier) and s.number is not None:
            wanted.append(word(parts, at_barrier=True))
        parts += part_in(s) is not None
    found = [int(number) for number in re.findall(r"or\.b64 word, word, (\d+);", to_ptx(made.text, "sm_90a"))]
    assert parts > 1 and wanted and sorted(found) == sorted(wanted)


@pytest.mark.slow
def test_the_error_of_a_lost_device_says_which_block_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[Any] = []
    made = runner.DeviceFrame

    def kept(*given: Any, **named: Any) -> Any:
        frames.append(made(*given, **named))
        return frames[-1]

    monkeypatch.setattr(runner, "DeviceFrame", kept)
    device = SimulatedDriver(FakeLibrary())
    device.description = FEW
    graph = _layers()
    program = dovetail.compile(graph, target=target_of(device), cache="off").bind(random_weights(graph))
    there = program.to_device({"x": np.ones((1, 128), bf16.numpy)})
    program.run(there, outputs="device")["y"].numpy()
    (frame,) = frames
    (first,) = frame.counters.values()
    words = np.empty(frame.counter.nbytes, np.uint8)
    frame.counter.download(words, 0)
    address = int(words[first + PLACE :][:8].view(np.uint64)[0])
    # As the thread does that stops the kernel.
    ctypes.c_uint64.from_address(address).value = word(2) | 3 << PASS | 1
    device.library.sticky = 719
    with pytest.raises(DeviceError, match=r"\(719\): .* block 1 waited in pass 3 for .* part 2") as caught:
        program.run(there, outputs="device")["y"].numpy()
    assert caught.value.is_lost and STUCK in str(caught.value.hint)


def test_a_kernel_that_says_nothing_has_failed_for_another_reason() -> None:
    error = error_of("cuStreamSynchronize", 719, "unspecified launch failure")
    assert isinstance(error, DeviceError) and error.is_lost and STUCK not in str(error.hint)

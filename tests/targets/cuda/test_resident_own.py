"""Parts of resident kernels before their words: pointers of a pass, and what threads sent themselves."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Alloc,
    Receive,
    Statement,
)
from dovetail.kernels.loops.persistent import kernel as resident
from dovetail.kernels.loops.persistent.own import Own, is_sent
from dovetail.kernels.loops.persistent.words import Words
from dovetail.runtime.program import Program
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.simulated import SimulatedDriver, target_of

pytestmark = pytest.mark.heavy

DEVICE = replace(H200, multiprocessors=20, cluster=8, dependent_intensity=inf, cooperative="on", bulk_copies=True)
COPYING = replace(DEVICE, copying_warp=True, bytes_per_cycle=18.75)


def _layers(count: int, width: int = 256, inner: int = 512) -> Graph:
    x = input("x", bf16[1, width])
    for layer in range(count):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[width]), eps=1e-6)
        hidden = library.swiglu(normed, param(f"g{layer}", bf16[width, inner]), param(f"u{layer}", bf16[width, inner]))
        x = x + hidden @ param(f"w{layer}", bf16[inner, width])
        x = x + ops.relu(x @ param(f"a{layer}", bf16[width, inner])) @ param(f"b{layer}", bf16[inner, width])
    return Graph.of({"y": x})


def _program(graph: Graph, device: GpuDevice) -> Program:
    simulated = SimulatedDriver()
    simulated.description = device
    return dovetail.compile(graph, target=target_of(simulated))


def _kernels(graph: Graph, device: GpuDevice) -> list[GpuKernel]:
    every = steps_of(_program(graph, device).plan, device=device)
    return [made for _, kernels in every for made in kernels or ()]


def _resident(graph: Graph, device: GpuDevice) -> GpuKernel:
    (made,) = [made for made in _kernels(graph, device) if made.kernel.counter]
    return made


def _run(graph: Graph, device: GpuDevice) -> tuple[Array, Array]:
    """What a run finds, and the reference."""
    random, drawn = np.random.default_rng(3), dict[str, Any]()
    for v in (*graph.inputs, *graph.parameters):
        shape = tuple(int(str(n)) for n in v.shape)
        drawn[str(v.attrs["name"])] = (random.normal(size=shape) * shape[0] ** -0.5).astype(v.dtype.numpy)
    x = {"x": drawn.pop("x")}
    found = _program(graph, device).bind(drawn).run(x)["y"]
    return found, evaluate(graph, x, params=drawn, lift=True)["y"]


def test_pointers_of_passes_come_through_the_cache_of_constants() -> None:
    """A load from memory at the start of a pass would delay all of it."""
    assert "cvta.param" not in to_ptx(_resident(_layers(4), COPYING).text, "sm_90a")


def _nothing_owned(*_: object) -> dict[tuple[int, str], Own]:
    return {}


def _own(made: GpuKernel) -> list[Alloc]:
    return [s for s in made.kernel.body if isinstance(s, Alloc) and s.pointer.startswith("itself_")]


@pytest.mark.parametrize("device", [DEVICE, COPYING], ids=["threads", "warp"])
def test_residuals_are_not_received_by_those_that_sent_them(device: GpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _layers(4)
    made = _resident(graph, device)
    received = sum(len(s.receipts) for s in everything(made.kernel.body) if isinstance(s, Receive))
    assert len(_own(made)) == 2
    found, wanted = _run(graph, device)
    monkeypatch.setattr(resident, "owned", _nothing_owned)
    other = _resident(graph, device)
    assert received + 2 == sum(len(s.receipts) for s in everything(other.kernel.body) if isinstance(s, Receive))
    np.testing.assert_array_equal(found, _run(graph, device)[0])
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


def test_the_first_pass_finds_what_no_pass_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(own: Own, words: Words) -> list[Statement]:
        return []

    monkeypatch.setattr(Own, "started", nothing)
    found, wanted = _run(_layers(4), COPYING)
    assert not np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


def test_what_other_threads_sent_is_received() -> None:
    """Columns of a residual that moved are those of other blocks."""
    x = input("x", bf16[1, 256])
    for layer in range(4):
        moved = ops.concat(x[:, 8:], x[:, :8], axis=-1)
        x = moved + ops.relu(x @ param(f"a{layer}", bf16[256, 512])) @ param(f"b{layer}", bf16[512, 256])
    graph = Graph.of({"y": x})
    assert not [a for made in _kernels(graph, COPYING) for a in _own(made)]
    found, wanted = _run(graph, COPYING)
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


def test_a_part_finds_only_what_its_passes_were_sent() -> None:
    """A part that the last passes leave out sends nothing there: what it sent before is of another pass."""
    three, four, last = range(3), range(4), range(3, 4)
    assert is_sent(four, four, is_before=False) and is_sent(four, last, is_before=False)
    assert not is_sent(three, four, is_before=False) and not is_sent(three, last, is_before=False)
    assert is_sent(three, four, is_before=True) and not is_sent(range(2), four, is_before=True)

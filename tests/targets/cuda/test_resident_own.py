"""Parts of resident kernels before their words: pointers of a pass, and what threads sent themselves."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops import resident
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Alloc,
    Receive,
    Statement,
)
from dovetail.kernels.loops.resident_own import Own, is_sent
from dovetail.kernels.loops.resident_words import Words
from dovetail.targets.cuda.gpu_kernel import GpuKernel
from dovetail.targets.cuda.ptx_compiler import to_ptx
from tests.targets.cuda.few_layers import COPYING, DEVICE, kernels_of, layers, ran, resident_of


def test_pointers_of_passes_come_through_the_cache_of_constants() -> None:
    """A load from memory at the start of a pass would delay all of it."""
    assert "cvta.param" not in to_ptx(resident_of(layers(4), COPYING).text, "sm_90a")


def _nothing_owned(*_: object) -> dict[tuple[int, str], Own]:
    return {}


def _own(made: GpuKernel) -> list[Alloc]:
    return [s for s in made.kernel.body if isinstance(s, Alloc) and s.pointer.startswith("itself_")]


@pytest.mark.parametrize("device", [DEVICE, COPYING], ids=["threads", "warp"])
def test_residuals_are_not_received_by_those_that_sent_them(device: GpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layers(4)
    made = resident_of(graph, device)
    received = sum(len(s.receipts) for s in everything(made.kernel.body) if isinstance(s, Receive))
    assert len(_own(made)) == 2
    found, wanted = ran(graph, device)
    monkeypatch.setattr(resident, "owned", _nothing_owned)
    other = resident_of(graph, device)
    assert received + 2 == sum(len(s.receipts) for s in everything(other.kernel.body) if isinstance(s, Receive))
    np.testing.assert_array_equal(found, ran(graph, device)[0])
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


def test_the_first_pass_finds_what_no_pass_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(own: Own, words: Words) -> list[Statement]:
        return []

    monkeypatch.setattr(Own, "started", nothing)
    found, wanted = ran(layers(4), COPYING)
    assert not np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


def test_what_other_threads_sent_is_received() -> None:
    """Columns of a residual that moved are those of other blocks."""
    x = input("x", bf16[1, 256])
    for layer in range(4):
        moved = ops.concat(x[:, 8:], x[:, :8], axis=-1)
        x = moved + ops.relu(x @ param(f"a{layer}", bf16[256, 512])) @ param(f"b{layer}", bf16[512, 256])
    graph = Graph.of({"y": x})
    assert not [a for made in kernels_of(graph, COPYING) for a in _own(made)]
    found, wanted = ran(graph, COPYING)
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


def test_a_part_finds_only_what_its_passes_were_sent() -> None:
    """A part that the last passes leave out sends nothing there: what it sent before is of another pass."""
    three, four, last = range(3), range(4), range(3, 4)
    assert is_sent(four, four, is_before=False) and is_sent(four, last, is_before=False)
    assert not is_sent(three, four, is_before=False) and not is_sent(three, last, is_before=False)
    assert is_sent(three, four, is_before=True) and not is_sent(range(2), four, is_before=True)

"""What is known of a kernel before it is compiled: its text is written once, and only where it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dovetail import Graph, ops
from dovetail.ir.dtype import f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.loops.ir import Kernel
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda import backend
from dovetail.targets.cuda.runs.run import kernels_of

GRAPH = Graph.of(ops.relu(input("x", f32[4, 64]) @ param("w", f32[64, 32])) + 1.0)


@pytest.mark.slow
def test_text_is_written_once_and_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many kernels join others: writing those as well took a third of the time of choosing and writing kernels."""
    written: list[str] = []
    printer = backend.CUDA.printer

    def noted(kernel: Kernel, alignment: Mapping[str, int], architecture: str) -> str:
        written.append(kernel.name)
        return printer(kernel, alignment, architecture)

    monkeypatch.setattr(backend, "CUDA", replace(backend.CUDA, printer=noted))
    made = [kernel for _, kernel in kernels_of(make_plan(GRAPH, target="cuda"))]
    assert made and not written
    texts = [kernel.text for kernel in made]
    assert [kernel.text for kernel in made] == texts and len(written) == len(made)
    assert all([f"@{kernel.kernel.name}(" in kernel.text for kernel in made])

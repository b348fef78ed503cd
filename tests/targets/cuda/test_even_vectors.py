"""Launched norms of rows whose vectors would leave some lanes of a warp without one."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import f16
from dovetail.ir.leaf import input, param
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Loop
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of


@pytest.mark.parametrize(("width", "vector"), [(384, 4), (512, 8), (320, 8)], ids=["halves", "whole", "odd"])
def test_each_lane_has_as_many_vectors(width: int, vector: int) -> None:
    """48 vectors of 8 become 96 of 4; 64 are even as they are, and 40 stay uneven either way."""
    x, gain, shift = input("x", f16[64, width]), param("gain", f16[width]), param("shift", f16[width])
    plan = make_plan(Graph.of({"y": library.layer_norm(x, gain, shift, eps=1e-5)}), target=CLAIMS)
    device = replace(H200, dependent_intensity=inf)
    ((_, kernels),) = steps_of(plan, device=device)
    assert kernels is not None
    every = [*everything(kernels[0].kernel.body)]
    sizes = {s.extent for s in every if isinstance(s, Loop) and s.kind == "unrolled"}
    assert vector in {getattr(size, "size", 0) for size in sizes}

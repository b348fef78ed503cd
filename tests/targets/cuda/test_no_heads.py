"""An attention without heads: its kernels have nothing to do, and there are some."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import DType, f16, f32
from dovetail.ir.leaf import input
from dovetail.plan.plan import make_plan
from tests.targets.cuda.judged import run_in_lockstep


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("dtype", [f16, f32])
def test_it_has_a_kernel(dtype: DType, queries: int) -> None:
    rows = {"q": queries, "k": 300, "v": 300}
    q, k, v = (input(name, dtype[2, 0, count, 64]) for name, count in rows.items())
    plan = make_plan(Graph.of(library.attention(q, k, v, scale=0.125)), target="cuda")
    feeds = {name: np.zeros((2, 0, count, 64), dtype.numpy) for name, count in rows.items()}
    assert run_in_lockstep(plan, feeds)["y"].shape == (2, 0, queries, 64)

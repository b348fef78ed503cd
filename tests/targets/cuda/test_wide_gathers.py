"""Rows that indices pick, moved 16 bytes a thread: the same elements, and none from beyond the axis."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.ir.dtype import f16, i64
from dovetail.ir.leaf import input
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Loop
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.runs.run import kernels_of
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import in_lockstep

ROWS, WIDTH = 7, 256


def _rows(count: int, width: int = WIDTH) -> Value:
    return ops.gather(x_of(f16, ROWS, width), input("i", i64[count]), axis=-2)


def _neighbours(value: Value) -> list[object]:
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"))
    return [s.extent for s in everything(made.kernel.body) if isinstance(s, Loop) and s.kind == "unrolled"]


@pytest.mark.parametrize(("count", "width", "wide"), [(1024, 256, True), (1024, 260, True), (512, 256, False)])
def test_threads_of_many_rows_take_neighbours(count: int, width: int, wide: bool) -> None:
    """Few rows have a thread for each element."""
    assert bool(_neighbours(_rows(count, width))) == wide


@pytest.mark.slow
def test_they_are_the_rows_that_indices_pick() -> None:
    value = _rows(1024)
    rng = np.random.default_rng(0)
    x, i = rng.normal(size=(ROWS, WIDTH)).astype(np.float16), rng.integers(-ROWS, ROWS, 1024)
    got = in_lockstep(Case({"y": value}), {"x": x, "i": i})["y"]
    np.testing.assert_array_equal(got, x[i])

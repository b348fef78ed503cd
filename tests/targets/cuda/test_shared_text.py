"""Kernels of equal text whose tensor maps differ: the fake device reads what a launch brings, as a device does."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.kernels.gpu.gemm import tile as tiles
from dovetail.kernels.loops.ir import Traversal
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.fake_driver import packed, unpacked
from tests.targets.cuda.simulated import SimulatedDriver
from tests.targets.cuda.test_norms_between import DEVICE, TILE

DEPTH, COLUMNS = 64, 64


def _products() -> dict[str, Value]:
    """Two products by matrices of one size: one is whole, the other has columns of a wider one, and starts later."""
    x = input("x", bf16[64, DEPTH])
    wide = input("wide", bf16[DEPTH, 3 * COLUMNS])
    part = ops.slice_(wide, axis=-1, start=COLUMNS, stop=2 * COLUMNS)
    return {"y": x @ input("w", bf16[DEPTH, COLUMNS]), "z": ops.tanh(x) @ part}


@pytest.mark.slow
def test_products_of_equal_text_copy_by_maps_of_their_own() -> None:
    graph, random, driver = Graph.of(_products()), np.random.default_rng(0), SimulatedDriver()
    driver.description = DEVICE
    feeds = {
        str(v.attrs["name"]): random.normal(size=tuple(int(str(n)) for n in v.shape)).astype(bf16.numpy)
        for v in graph.inputs
    }
    with patch.object(tiles, "PIPELINED_TILES", (TILE,)):
        plan = make_plan(graph, target=CLAIMS)
        made = [kernel for _, kernel in kernels_of(plan, device=DEVICE) if kernel.kernel.maps]
        assert len(made) == 2 and len({kernel.text for kernel in made}) == 1
        assert len({kernel.kernel.maps for kernel in made}) == 2
        found = CudaGraph(plan, lambda: driver).bind({}).run(feeds)
    exact = evaluate(graph, feeds, lift=True)
    for name, y in found.items():
        error = np.linalg.norm(np.asarray(y, np.float64) - exact[name])
        assert error <= 1e-2 * np.linalg.norm(exact[name]), name


@pytest.mark.parametrize("by", [Traversal((-1,), (0,), (2,)), Traversal((-3, 0, 2), (-2, 1, -1), (1, 2, 3))], ids=str)
def test_traversals_are_read_as_they_were_written(by: Traversal) -> None:
    for corner in (by.lower, by.upper, by.strides):
        assert unpacked(packed(corner), len(corner)) == corner

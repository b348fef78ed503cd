"""Blocks of a cluster that copy columns for each other: in lockstep, which products, and as PTX."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from unittest.mock import patch

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bf16, f16
from dovetail.ir.leaf import input, param
from dovetail.kernels.gpu.gemm import tile as tiles
from dovetail.kernels.gpu.gemm.tile import BlockTile
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import BOX, ClusterBarrier, CopyBox
from dovetail.kernels.request import LAUNCH, Request, Role
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import check, feeds_of, in_lockstep
from tests.targets.cuda.simulated import SimulatedDriver

PAIR = BlockTile(64, 64, 4, 1, 3, by_warpgroup=True, cluster=2)
FOUR = replace(H200, multiprocessors=4)
_TURNED = (-1, -2)
PRODUCTS: dict[str, tuple[BlockTile, Value]] = {
    "bias": (
        PAIR,
        library.linear(x_of(f16, 128, 200), x_of(f16, 200, 136, name="w"), x_of(f16, 136, name="b"), act="relu"),
    ),
    "added": (
        replace(PAIR, cluster=4),
        library.matmul_add(x_of(bf16, 250, 136), x_of(bf16, 136, 72, name="w"), x_of(bf16, 250, 72, name="z")),
    ),
    "streams": (
        BlockTile(64, 128, 4, 1, 2, by_warpgroup=True, cluster=2),
        library.swiglu(x_of(f16, 120, 136), x_of(f16, 136, 72, name="u"), x_of(f16, 136, 72, name="g")),
    ),
    "right_turned": (PAIR, ops.matmul(x_of(f16, 70, 72), ops.permute(x_of(f16, 72, 72, name="w"), order=_TURNED))),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_blocks_of_a_cluster_share_copies(name: str) -> None:
    tile, value = PRODUCTS[name]
    case = Case({"y": value}, scale=8.0)
    feeds = feeds_of(Graph.of(case.outputs), {})
    with patch.object(tiles, "PIPELINED_TILES", (tile,)):
        ((_, made),) = kernels_of(make_plan(Graph.of(case.outputs), target="cuda"), device=FOUR)
        assert made.kernel.launch is not None and made.kernel.launch.cluster == tile.cluster
        check(case, in_lockstep(case, feeds, device=FOUR), feeds)
    boxes = {s.source.pointer: s.blocks for s in everything(made.kernel.body) if isinstance(s, CopyBox)}
    assert boxes.pop("x0") == 1 and set(boxes.values()) == {tile.cluster}


def test_weights_are_shared_before_other_kernels_end() -> None:
    """Once all blocks of a cluster have barriers."""
    x, w = input("x", f16[128, 200]), param("w", f16[200, 136])
    device = SimulatedDriver()
    device.description = replace(FOUR, cluster=8, dependent_intensity=inf, cooperative="off")
    random = np.random.default_rng(2)
    a, b = (random.normal(size=s).astype(np.float16) for s in ((128, 200), (200, 136)))
    with patch.object(tiles, "PIPELINED_TILES", (PAIR,)):
        graph = Graph.of({"y": ops.matmul(x, w)})
        ((_, made),) = kernels_of(make_plan(graph, target="cuda"), device=device.description)
        found = CudaGraph(make_plan(graph, target="cuda"), lambda: device).bind({"w": b}).run({"x": a})["y"]
    waits = [i for i, s in enumerate(made.kernel.early) if isinstance(s, ClusterBarrier)]
    assert len(waits) == 1 and not any(isinstance(s, CopyBox) for s in everything(made.kernel.early[: waits[0]]))
    assert any(isinstance(s, CopyBox) and s.blocks == 2 for s in everything(made.kernel.early))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(found.astype(np.float64) - exact) <= 1e-3 * np.linalg.norm(exact)


CHOICES = {
    "prompt": ((512, 4096, 1024), 2),
    "narrow": ((512, 1024, 3072), 2),
    "waves": ((4096, 4096, 4096), 1),
    "few_tiles": ((128, 768, 3072), 1),
    "idle": ((4096, 384, 1536), 1),
    "wide": ((4096, 768, 3072), 1),
    "odd_tiles": ((384, 4096, 1024), 1),
    "shallow": ((512, 4096, 384), 1),
}


@pytest.mark.parametrize("name", CHOICES)
def test_clusters_are_for_deep_products_whose_tiles_run_at_once(name: str) -> None:
    (rows, columns, depth), cluster = CHOICES[name]
    device, early = replace(H200, cluster=8), Request(starts_early=True)
    for each, request, expected in (
        (device, early, cluster),
        (device, Request(Role.WITH_PROLOGUE), 1),
        (H200, LAUNCH, 1),
    ):
        found = tiles.pipelined_tile_of(rows, columns, depth, 1, BOX, each, request=request)
        assert found is not None and found[0].cluster == expected
    open_rows = tiles.pipelined_tile_of(symbol("n"), columns, depth, 1, BOX, device)
    assert open_rows is not None and open_rows[0].cluster == 1


def test_blocks_arrive_at_others_without_a_fence_of_the_device() -> None:
    """A release for the cluster would make each stage of a warp wait for all that it has written."""
    x, w = x_of(bf16, 512, 768), x_of(bf16, 768, 768, name="w")
    tile = BlockTile(128, 128, 8, 1, 6, by_warpgroup=True, cluster=2)
    with patch.object(tiles, "PIPELINED_TILES", (tile,)):
        ((_, made),) = kernels_of(make_plan(Graph.of({"y": ops.matmul(x, w)}), target="cuda"))
    ptx = to_ptx(made.text, "sm_90a")
    assert ".multicast::cluster" in ptx and "mbarrier.arrive.shared::cluster" in ptx and "arrive.relaxed" in ptx
    assert ".release.cluster" not in ptx.replace("fence.mbarrier_init.release.cluster", "")
    assert ".reqnctapercluster 2" in ptx and "__local_depot" not in ptx

"""Results of a tile beside the products of the next one: the bits of the kernel that computes them after each tile."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from dovetail import Graph, Value, library
from dovetail.ir.dtype import f16
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm import narrow_results, tile
from dovetail.kernels.gpu.gemm.tile import BlockTile
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import MultiplyShared
from dovetail.library.activation import Activation
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of
from dovetail.targets.gpu.kernel import GpuKernel
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import check, feeds_of, in_lockstep

TWO = replace(H200, multiprocessors=2)
"""Blocks have several tiles each."""
TILE = BlockTile(64, 64, 4, 1, 3, by_warpgroup=True)


def _linear(rows: int, columns: int, depth: int, act: Activation = "none") -> Value:
    x, w = x_of(f16, rows, depth), x_of(f16, depth, columns, name="w")
    return library.linear(x, w, x_of(f16, columns, name="b"), act=act)


def _made(value: Value, device: GpuDevice) -> GpuKernel:
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=device)
    return made


def _products(made: GpuKernel) -> int:
    return len([s for s in everything(made.kernel.body) if isinstance(s, MultiplyShared)])


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns", "act"), [(320, 64, "gelu"), (200, 136, "none"), (130, 72, "relu")])
def test_blocks_with_several_tiles(rows: int, columns: int, act: Activation) -> None:
    """Five, twelve and six tiles, whose last ones are cut."""
    value = _linear(rows, columns, 256, act)
    case, feeds = Case({"y": value}), feeds_of(Graph.of({"y": value}), {})
    with patch.object(tile, "PIPELINED_TILES", (TILE,)):
        assert _products(_made(value, TWO)) == 1
        after = in_lockstep(case, feeds, device=TWO)
        with patch.object(narrow_results, "LATE_SUMS", 32):
            assert _products(_made(value, TWO)) == 3, "two rounds have a piece of results beside them, others have none"
            beside = in_lockstep(case, feeds, device=TWO)
    check(case, beside, feeds)
    np.testing.assert_array_equal(beside["y"].view(np.uint16), after["y"].view(np.uint16))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "depth", "multiprocessors", "products"),
    [(4096, 768, 132, 7), (4096, 384, 132, 6), (4096, 320, 132, 1), (256, 768, 132, 1), (4096, 768, 1024, 1)],
    ids=["several_tiles", "just_enough_rounds", "few_rounds", "few_tiles", "a_tile_each"],
)
def test_only_where_a_next_tile_has_time_for_them(rows: int, depth: int, multiprocessors: int, products: int) -> None:
    wide = BlockTile(128, 192, 8, 1, 5, by_warpgroup=True)
    with patch.object(tile, "PIPELINED_TILES", (wide,)):
        assert _products(_made(_linear(rows, 3072, depth), replace(H200, multiprocessors=multiprocessors))) == products


@pytest.mark.exhaustive
@pytest.mark.parametrize("columns", [128, 192])
@pytest.mark.parametrize("dependent", [False, True])
def test_the_assembler_does_not_serialise_them(columns: int, dependent: bool, tmp_path: Path) -> None:
    """It does where it takes what is kept for the sums themselves."""
    one = BlockTile(128, columns, 8, 1, 5, by_warpgroup=True)
    with patch.object(tile, "PIPELINED_TILES", (one,)):
        made = _made(_linear(4096, 3072, 768, "gelu"), replace(H200, dependent_intensity=inf if dependent else 0.0))
    told = assembled(made, "sm_90a", tmp_path)
    assert _products(made) > 1 and not spilled_bytes(told) and "Performance Loss" not in told, told

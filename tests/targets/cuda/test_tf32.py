"""GEMMs of f32 by the record of mma.sync with tf32 factors: fractions of 10 bits, sums in f32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.ir.dtype import f32
from dovetail.kernels.matrix_instruction import MMA, MMA_TF32
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import check, in_lockstep

TF32 = replace(H200, architecture="sm_80", matrix_instructions=(*MMA, MMA_TF32), converts_fp8=False)
TURNED = (-1, -2)


def _product(rows: int, depth: int, columns: int, *, turned: bool) -> Case:
    """A GEMM whose weights are contiguous along columns, or along k."""
    w = x_of(f32, *((columns, depth) if turned else (depth, columns)), name="w")
    return Case({"y": ops.matmul(x_of(f32, rows, depth), ops.permute(w, order=TURNED) if turned else w)})


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True], ids=["along_columns", "along_k"])
@pytest.mark.parametrize("sizes", [(128, 256, 64), (40, 72, 48), (37, 45, 51)], ids=str)
def test_a_gemm_of_tf32(sizes: tuple[int, int, int], turned: bool) -> None:
    """Small integers have few bits, so that no factor is rounded and every sum is exact."""
    case = _product(*sizes, turned=turned)
    rng = np.random.default_rng(3)
    feeds = {
        str(v.attrs["name"]): rng.integers(-8, 8, [int(str(n)) for n in v.shape]).astype(np.float32)
        for v in Graph.of(case.outputs).inputs
    }
    check(case, in_lockstep(case, feeds, device=TF32), feeds)


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True], ids=["along_columns", "along_k"])
def test_it_is_multiplied_by_tensor_cores(turned: bool) -> None:
    graph = Graph.of(_product(128, 256, 64, turned=turned).outputs)
    ((_, kernels),) = steps_of(make_plan(graph, target="cuda"), device=TF32)
    assert kernels
    ptx = to_ptx(kernels[0].text, "sm_80")
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in ptx
    assert ("ldmatrix" in ptx) and ".trans" not in ptx, "lines of f32 are not turned"
    assert "cp.async.cg.shared.global" in ptx and "__local_depot" not in ptx


@pytest.mark.slow
def test_devices_have_it_only_where_they_are_given_it() -> None:
    """Its sums are not those of f32."""
    graph = Graph.of(_product(128, 256, 64, turned=False).outputs)
    ((_, kernels),) = steps_of(make_plan(graph, target="cuda"), device=replace(TF32, matrix_instructions=MMA))
    assert kernels and "mma.m16n8k8" not in kernels[0].text

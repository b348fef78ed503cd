"""What the report says of the engines of a step: all that are of its kind, their estimates, and why one is taken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dovetail import Graph, Value, library, ops
from dovetail.ir.dtype import bf16, f32
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.engines import BLOCKS, DENSE
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import locations_of
from dovetail.targets.gpu.select import TABLE
from dovetail.targets.target import Considered
from tests.targets.cuda.cards import card
from tests.targets.cuda.graphs import x_of
from tests.targets.cuda.images import image, weights


def _considered(value: Value, device: GpuDevice = H200) -> Sequence[Considered]:
    plan = make_plan(Graph.of({"y": value}), target="cuda")
    step = plan.phase("run")[-1]
    rows = TABLE.considered(step, locations_of(plan), device, CLAIMS.machine)
    assert [row.name for row in rows][-1] == "host"
    return rows[:-1]


def _taken(rows: Sequence[Considered]) -> Considered:
    (row,) = [row for row in rows if row.taken]
    return row


def _kinds(rows: Sequence[Considered]) -> set[str]:
    return {row.kind for row in rows}


def test_a_gemm_is_told_with_every_engine() -> None:
    rows = _considered(library.linear(x_of(bf16, 512, 768, name="x"), weights(bf16, 768, 768), weights(bf16, 768)))
    assert _kinds(rows) == {"gemm"} and [row.name for row in rows] == [*DENSE]
    by_name = {row.name: row for row in rows}
    taken = by_name["gemm_tma"]
    assert taken.taken and taken.seconds is not None and taken.ratio == 1.0
    assert by_name["gemv"].reason == "not: rows are few (found 512, expected at most 8)"
    assert by_name["gemm_shared"].condition == "kernel_is_a_part"
    passed = by_name["gemm_cp_async"]
    assert passed.seconds is not None and passed.ratio is not None
    assert passed.reason == f"{passed.ratio:.2f} times gemm_tma, which comes first"
    assert by_name["gemm_fma"].condition == "tensor_cores_lack_the_dtype"


def test_a_gemm_without_warpgroups_says_so() -> None:
    rows = _considered(
        library.linear(x_of(bf16, 512, 768, name="x"), weights(bf16, 768, 768), weights(bf16, 768)),
        card("a100").description,
    )
    assert _taken(rows).name == "gemm_cp_async"
    refused = next(row for row in rows if row.name == "gemm_tma")
    assert refused.condition == "device_multiplies_by_warpgroups" and refused.found == "sm_80"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200", "a100"])
def test_a_gemv_streams_its_weights(name: str) -> None:
    rows = _considered(x_of(bf16, 1, 4096, name="x") @ weights(bf16, 4096, 4096), card(name).description)
    assert _kinds(rows) == {"gemm"} and _taken(rows).name == "gemv" and _taken(rows).bound == "memory"
    assert [row.condition for row in rows][:2] == ["weights_go_in_stages", "threads_multiply_as_fast"]


@pytest.mark.slow
def test_a_gemm_of_f32_is_by_multiply_adds() -> None:
    rows = _considered(x_of(f32, 512, 768, name="x") @ weights(f32, 768, 768))
    assert _taken(rows).name == "gemm_fma" and _taken(rows).seconds
    assert {row.condition for row in rows if not row.taken} == {"tensor_cores_have_the_dtype"}


def test_a_convolution_is_told_with_every_engine() -> None:
    rows = _considered(ops.conv(image(bf16, 2, 64, 28, 28), weights(bf16, 64, 64, 3, 3), padding=1))
    assert _kinds(rows) == {"convolution"}
    assert [row.name for row in rows] == [
        "depthwise", "convolve.copied", "convolve.folded", "convolve.gathered", "convolve.fma"
    ]  # fmt: skip
    assert _taken(rows).seconds and all([row.reason for row in rows if not row.taken])


def test_an_attention_is_told_with_every_engine() -> None:
    """A declared op with a body, and neither a map, rows nor a GEMM."""
    q, k, v = (x_of(bf16, 64, 512, 64, name=name) for name in "qkv")
    rows = _considered(library.attention(q, k, v, scale=0.125))
    assert _kinds(rows) == {"attention"} and _taken(rows).name == "attend_groups" and _taken(rows).seconds
    assert all([row.reason for row in rows if not row.taken])


@pytest.mark.slow
def test_a_step_is_of_one_kind() -> None:
    """Of those that fused ops and regions may be."""
    x = x_of(f32, 64, 128, name="x")
    assert _kinds(_considered(library.softmax(x, axis=-1))) == {"elementwise"}
    assert _kinds(_considered(library.linear(x, weights(f32, 128, 64), act="relu"))) == {"gemm"}
    assert not {*DENSE} & {*BLOCKS}

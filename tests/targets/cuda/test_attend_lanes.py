"""Attention of few queries by multiply-adds, as a part of a resident kernel: float64 judges it, and the report tells
why another kernel is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import DType, bf16, bool_, f16
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.choice import LANES_ARE_FASTER
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, Kernel, MultiplyMatrices
from dovetail.kernels.loops.launch_fusion.amend import opened
from dovetail.kernels.request import LAUNCH, Request, Role
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.select import TABLE
from dovetail.targets.gpu.steps import locations_of
from dovetail.targets.target import Considered
from tests.targets.cuda import judged
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import feeds_of, in_lockstep

PART = replace(H200, multiprocessors=4, cluster=8, copying_warp=True, tensor_hertz=1.8e9)
"""A small device: four blocks share the keys of a head, or two those of each of two."""
PART_OF_ALL = Request(Role.PART)


def _attention(rows: int, width: int, dtype: DType, heads: int = 1, **call: Any) -> Value:
    q = x_of(dtype, heads * rows, 1, width, name="q")
    k, v = (x_of(dtype, heads, "t", width, name=name) for name in "kv")
    groups = {"groups": rows} if rows > 1 else {}
    return library.attention(q, k, v, scale=0.3, **groups, **call)


def _alone(kernel: Kernel) -> Kernel:
    """A part as a launch: no stage comes between its first copies and its body."""
    found = opened(kernel, [], {}, 1)
    allocated = [s for s in found.body if isinstance(s, Alloc)]
    return replace(kernel, opening=(), body=(*allocated, *found.opening, *found.body[len(allocated) :]))


def _run(value: Value, keys: int, monkeypatch: pytest.MonkeyPatch, device: GpuDevice = PART) -> tuple[Any, Any]:
    kernels: list[Kernel] = []

    def alone(*given: Any) -> list[tuple[Any, Any]]:
        every = [
            (step, [replace(m, kernel=_alone(m.kernel)) for m in made or ()])
            for step, made in steps_of(*given, request=PART_OF_ALL)
        ]
        kernels.extend(made.kernel for _, several in every for made in several)
        return every

    monkeypatch.setattr(judged, "steps_of", alone)
    feeds = feeds_of(Graph.of({"y": value}), {"t": keys})
    if "keep" in feeds:
        feeds["keep"][..., 0] = True
    found = in_lockstep(Case({"y": value}), feeds, device=device)["y"]
    (kernel,) = kernels
    assert not any(isinstance(s, MultiplyMatrices) for s in everything(kernel.body))
    return found.astype(np.float64), _by_hand(feeds)


def _by_hand(feeds: Mapping[str, Any]) -> Any:
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    groups = q.shape[0] // k.shape[0]
    k, v = (np.repeat(x, groups, axis=0) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * 0.3
    scores = scores + feeds["mask"].astype(np.float64) if "mask" in feeds else scores
    scores = np.where(feeds["keep"], scores, -np.inf) if "keep" in feeds else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


KEEP: Mapping[str, Any] = {"keep": x_of(bool_, 1, "t", name="keep"), "fill": -math.inf}
CASES: Sequence[tuple[int, int, int, DType, int, Mapping[str, Any]]] = (
    (300, 2, 128, bf16, 1, KEEP),
    (33, 1, 64, f16, 1, {}),
    (97, 3, 32, bf16, 2, {"mask": x_of(bf16, 6, 1, "t", name="mask")}),
    (1, 2, 256, f16, 1, {"keep": x_of(bool_, 2, 1, "t", name="keep"), "fill": -math.inf}),
)
"""Keys, queries of a head, its width, the type, heads and masks."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]} keys, {c[1]} queries, {c[2]} wide" for c in CASES])
def test_few_queries_are_near_float64(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, rows, width, dtype, heads, call = case
    found, wanted = _run(_attention(rows, width, dtype, heads, **call), keys, monkeypatch)
    ulp = 2.0**-8 if dtype is bf16 else 2.0**-11
    # One rounding, of the result: weights are f32.
    np.testing.assert_allclose(found, wanted, rtol=1.01 * ulp, atol=1e-3 * ulp)


def _rows(value: Value, device: GpuDevice, request: Request = PART_OF_ALL) -> Mapping[str, Considered]:
    plan = make_plan(Graph.of({"y": value}), target="cuda")
    (step,) = plan.phase("run")
    return {row.name: row for row in TABLE.considered(step, locations_of(plan), device, CLAIMS.machine, request)}


WHOLE = replace(H200, cluster=8, copying_warp=True, tensor_hertz=1.8e9)
REFUSED: Mapping[str, tuple[Value, GpuDevice]] = {
    "tensor_cores_lower_the_clock": (_attention(2, 128, bf16, 8), replace(WHOLE, tensor_hertz=0.0)),
    "blocks_share_keys": (library.attention(*[x_of(bf16, 8, 64, 128, name=n) for n in "qkv"], scale=0.2), WHOLE),
    "queries_are_few": (_attention(16, 128, bf16, 8), WHOLE),
    "features_are_shared_by_lanes": (_attention(2, 80, bf16, 8), WHOLE),
    "scores_are_scaled_or_hidden": (_attention(2, 128, bf16, 8, softcap=30.0), WHOLE),
}


def test_launches_are_on_tensor_cores() -> None:
    row = _rows(_attention(2, 128, bf16, 8), WHOLE, LAUNCH)["attend_lanes"]
    assert (row.taken, row.condition) == (False, "kernel_is_a_part")


@pytest.mark.parametrize("condition", REFUSED)
def test_a_named_condition_refuses_multiply_adds(condition: str) -> None:
    value, device = REFUSED[condition]
    rows = _rows(value, device)
    assert (rows["attend_lanes"].taken, rows["attend_lanes"].condition) == (False, condition)
    assert any(row.taken for row in rows.values())


@pytest.mark.parametrize(("queries", "taken"), [(1, "attend_lanes"), (2, "attend_lanes"), (8, "attend_cluster")])
def test_the_lower_estimate_decides(queries: int, taken: str) -> None:
    """Tensor cores have 16 rows whatever there are; lanes multiply for each query."""
    rows = _rows(_attention(queries, 128, bf16, 8), WHOLE)
    assert [name for name, row in rows.items() if row.taken] == [taken]
    condition = "" if taken == "attend_lanes" else LANES_ARE_FASTER
    assert rows["attend_lanes"].condition == condition

"""Which attention kernel is taken, and what the report tells of the other: named conditions, and the lower estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import DType, bf16, bool_, f16
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.choice import IS_FASTER, cycles_of, group_tile, warp_tile
from dovetail.kernels.gpu.attention.sources import AttendSources, sources_of
from dovetail.kernels.gpu.attention.tile import GROUP_WARPS, GroupTile
from dovetail.kernels.matrix_instruction import MMA
from dovetail.kernels.request import Request, Role
from dovetail.plan.plan import make_plan
from dovetail.runtime.compile import compilation, make_request
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of
from dovetail.targets.gpu.select import TABLE
from dovetail.targets.gpu.steps import locations_of
from dovetail.targets.target import Considered
from tests.targets.cuda.cards import card
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import check, feeds_of, in_lockstep
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.targets.cuda.timed import set_timings


def _attention(
    queries: int, keys: int | str, width: int = 64, heads: int = 192, dtype: DType = f16, **call: Any
) -> Value:
    q = x_of(dtype, heads, queries, width, name="q")
    k, v = (x_of(dtype, heads // (call.get("groups") or 1), keys, width, name=name) for name in "kv")
    return library.attention(q, k, v, scale=0.2, **call)


def _rows(value: Value, device: GpuDevice, request: Request | None = None) -> Mapping[str, Considered]:
    plan = make_plan(Graph.of({"y": value}), target="cuda")
    (step,) = plan.phase("run")
    rows = TABLE.considered(step, locations_of(plan), device, CLAIMS.machine, request or Request())
    return {row.name: row for row in rows if row.kind == "attention"}


def _taken(value: Value, device: GpuDevice = H200) -> str:
    """The kernel that the report has as taken, which is the one that is made."""
    (name,) = [row.name for row in _rows(value, device).values() if row.taken]
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=device)
    assert made.kernel.name == name
    return name


def _sources(value: Value) -> AttendSources:
    plan = make_plan(Graph.of({"y": value}), target="cuda")
    (step,) = plan.phase("run")
    found = sources_of(StepProblem(step, locations_of(plan), H200))
    assert isinstance(found, AttendSources)
    return found


def test_both_kernels_are_told_with_their_estimates() -> None:
    value = _attention(128, 128)
    assert _taken(value) == "attend_groups"
    rows = _rows(value, H200)
    assert list(rows) == ["attend_lanes", "attend_groups", "attend", "attend_fma", "attend_row"], "the preferred first"
    groups, warps = rows["attend_groups"].seconds, rows["attend"].seconds
    assert groups is not None and warps is not None and groups < warps and not rows["attend"].condition
    assert rows["attend"].reason == f"{warps / groups:.2f} times attend_groups"


LAUNCH_MICROSECONDS = 1.45
"""µs between two kernels of a graph."""
KEEP: Mapping[str, Any] = {"keep": x_of(bool_, 72, "t", name="keep"), "fill": -math.inf}
REFUSED: Mapping[str, tuple[Value, GpuDevice, str, str]] = {
    "device_multiplies_by_warpgroups": (
        _attention(80, 80), replace(H200, architecture="sm_80", matrix_instructions=MMA), "sm_80", "attend",
    ),
    "features_fill_lines": (_attention(80, 80, 96), H200, "96 and 96", "attend"),
    "queries_and_sums_fit_registers": (_attention(80, 80, 192), H200, "144 of a thread", "attend"),
    "a_block_has_all_keys": (
        _attention(1, 4096, heads=16), replace(H200, cluster=8), "8 blocks for the keys of a head", "attend_cluster",
    ),
    "mask_is_loaded_in_vectors": (_attention(72, "t", **KEEP), H200, "", "attend"),
    IS_FASTER: (_attention(16, 80), H200, " cycles", "attend"),
}  # fmt: skip


@pytest.mark.parametrize("condition", REFUSED)
def test_a_named_condition_refuses_warpgroups(condition: str) -> None:
    value, device, found, taken = REFUSED[condition]
    rows = _rows(value, device)
    refused = rows["attend_groups"]
    assert (refused.taken, refused.condition) == (False, condition) and found in refused.found
    assert condition.replace("_", " ") in refused.reason
    assert rows[taken].taken


def _judged(value: Value, device: GpuDevice) -> None:
    case = Case({"y": value})
    feeds = feeds_of(Graph.of(case.outputs), {"t": 300})
    check(case, in_lockstep(case, feeds, device=device), feeds)


WIDTHS = (80, 128, 192, 256)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["l4", "rtx5090"])
@pytest.mark.parametrize("queries", [1, 16, 64, 512])
def test_every_width_has_a_kernel_on_cards_with_little_shared_memory(name: str, queries: int) -> None:
    """99 KiB: blocks have fewer keys at once than on an H200."""
    device = card(name).description
    for width, keys in product(WIDTHS, (128, 4096, "t")):
        rows = _rows(_attention(queries, keys, width, heads=16, groups=2), device)
        assert [row.name for row in rows.values() if row.taken], f"{width} features, {keys} keys"


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "width", "cluster"), [(2, 128, 4), (20, 256, 0), (1, 256, 0), (70, 192, 0)])
def test_few_keys_at_once_are_right(queries: int, width: int, cluster: int) -> None:
    device = replace(H200, shared_bytes=99 << 10, multiprocessors=8, cluster=cluster, matrix_instructions=MMA)
    _judged(_attention(queries, 300, width, heads=2), device)


def test_a_part_of_a_persistent_kernel_multiplies_by_warps() -> None:
    rows = _rows(_attention(80, 80), H200, Request(Role.PART))
    refused = rows["attend_groups"]
    assert refused.condition == "kernel_is_a_launch" and refused.found == "a part of a resident kernel"
    assert rows["attend"].taken


def test_factors_that_cannot_be_copied_in_vectors_refuse_warpgroups() -> None:
    q, k, v = (x_of(f16, 192, 80, 64, name=name) for name in "qkv")
    rows = _rows(library.attention(q, k[:, :, ::-1], v, scale=0.2), H200)
    assert rows["attend_groups"].condition == "factors_are_copied_in_vectors" and rows["attend"].taken


def test_the_lower_estimate_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    value = _attention(128, 128)
    assert _taken(value) == "attend_groups"
    set_timings(monkeypatch, "attention", warpgroup_latency=100.0)
    assert _taken(value) == "attend"
    refused = _rows(value, H200)["attend_groups"]
    assert refused.condition == IS_FASTER and refused.expected.endswith("by warps")


def _causal(tokens: int, width: int = 128, heads: int = 16) -> Value:
    return _attention(tokens, tokens, width, heads, bf16, causal=True, fill=-math.inf, groups=2)


def _kept(tokens: int) -> Value:
    keep = x_of(bool_, tokens, tokens, name="keep")
    return _attention(tokens, tokens, 128, 16, bf16, keep=keep, fill=-math.inf, groups=2)


MEASURED: Mapping[str, tuple[Value, tuple[float, float, float]]] = {
    "12 heads, 128": (_attention(128, 128, heads=12), (3.01, 3.16, 3.35)),
    "12 heads, 256": (_attention(256, 256, heads=12), (5.64, 4.31, 4.61)),
    "12 heads, 512": (_attention(512, 512, heads=12), (7.70, 6.52, 6.89)),
    "3 heads, 197": (_attention(197, 197, heads=3), (3.28, 4.40, 4.61)),
    "6 heads, 1500": (_attention(1500, 1500, heads=6), (33.35, 21.80, 22.77)),
    "768 heads, 32": (_attention(32, 32, heads=768), (4.99, 6.00, 10.09)),
    "96 heads, 512": (_attention(512, 512, heads=96), (30.33, 20.30, 25.75)),
    "causal 64": (_causal(64), (4.27, 3.93, 4.99)),
    "causal 128": (_causal(128), (4.41, 5.27, 4.95)),
    "causal 256": (_causal(256), (5.53, 7.19, 6.69)),
    "causal 512": (_causal(512), (12.15, 10.92, 9.98)),
    "causal 1024": (_causal(1024), (35.20, 20.60, 18.97)),
    "mask 256": (_kept(256), (10.08, 7.59, 6.85)),
}
"""Attentions, and what they took on an H200 in µs: by warps, by one warpgroup of a block, by two (docs/design/0018)."""


@pytest.mark.parametrize("name", MEASURED)
def test_estimates_take_a_kernel_that_is_nearly_the_fastest(name: str) -> None:
    value, times = MEASURED[name]
    found = group_tile(_sources(value))
    taken = times[0 if isinstance(found, Refused) else found.splits]
    assert taken <= 1.1 * min(times)


@pytest.mark.parametrize("name", MEASURED)
def test_estimates_are_near_what_was_measured(name: str) -> None:
    value, times = MEASURED[name]
    sources = _sources(value)
    groups = [GroupTile(sources.problem, sources.dtype, GROUP_WARPS, splits) for splits in (1, 2)]
    for tile, measured in zip((warp_tile(sources), *groups), times, strict=True):
        assert LAUNCH_MICROSECONDS + cycles_of(tile, H200) / H200.hertz * 1e6 == pytest.approx(measured, rel=0.25)


@pytest.mark.slow
def test_a_report_tells_the_kernels_of_its_device() -> None:
    device = SimulatedDriver()
    made = compilation(Graph.of({"y": _attention(80, 80)}), make_request(target=target_of(device)))
    (step,) = made.plan.phase("run")
    assert {row.name for row in made.considered(step) if row.taken} == {"attend_groups"}
    device.description = replace(device.description, matrix_instructions=MMA)
    rows = {row.name: row for row in made.considered(step)}
    assert rows["attend"].taken and rows["attend_groups"].condition == "device_multiplies_by_warpgroups"

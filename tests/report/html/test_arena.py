"""The picture of the arena says what the plan says."""

from __future__ import annotations

import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.report.html.arena import arena_picture
from dovetail.runtime.compile import compilation, make_request
from tests.report.html.models import compiled

MODELS = ("bert", "llama", "resnet", "unet")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_slots_and_peak_are_those_of_the_plan(model: str) -> None:
    plan = compiled(model).plan
    arena = arena_picture(plan, {})
    assert (arena["size"], arena["peak"], arena["unshared"]) == (plan.arena_size, plan.peak, plan.unshared_bytes)
    assert max(arena["held"]) == plan.peak
    steps = plan.phase("run")
    wanted = [
        (plan.slots[r].offset, plan.slots[r].size)
        for step in steps
        for r in step.results
        if r in plan.slots and plan.slots[r].pool == "arena"
    ]
    assert [(s["offset"], s["size"]) for s in arena["slots"]] == wanted
    assert all(plan.steps[s["kernel"]] is steps[s["first"]] for s in arena["slots"])


@pytest.mark.parametrize("model", MODELS)
def test_no_two_tensors_hold_a_byte_at_once(model: str) -> None:
    slots = arena_picture(compiled(model).plan, {})["slots"]
    for i, a in enumerate(slots):
        for b in slots[:i]:
            together = a["first"] <= b["last"] and b["first"] <= a["last"]
            shared = a["offset"] < b["offset"] + b["size"] and b["offset"] < a["offset"] + a["size"]
            assert not (together and shared and a["size"] and b["size"])


def test_a_result_that_takes_over_memory_ends_what_lay_there() -> None:
    graph = Graph.of({"y": ops.tanh(ops.exp(input("x", f32[64]))) * 2.0})
    plan = compilation(graph, make_request(target="reference", without=["mark_regions"])).plan
    arena = arena_picture(plan, {})
    assert max(arena["held"]) == plan.peak and any(step.over is not None for step in plan.steps)


def test_a_symbolic_plan_counts_what_estimates_count() -> None:
    plan = compilation(Graph.of(ops.exp(input("x", f32["n"]))), make_request()).plan
    assert arena_picture(plan, {})["slots"][0]["size"] == 4 * 128
    assert arena_picture(plan, {"n": 10})["slots"][0]["size"] == 40

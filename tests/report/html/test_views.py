"""The stages as drawings: the same kernels, names and numbers as the report has."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.ir import leaf
from dovetail.report.html.family import FAMILIES
from dovetail.report.html.views import stage_views
from tests.report.html.models import compiled

MODELS = ("bert", "llama", "llama_step", "resnet", "unet")


def drawn(stages: dict[str, Any], view: dict[str, Any]) -> list[str]:
    """The ops of a view that are neither inputs nor outputs."""
    end = FAMILIES.index("end")
    return [stages["words"][op] for op, f in zip(view["ops"], view["families"], strict=True) if f != end]


@pytest.mark.parametrize("model", MODELS)
def test_a_view_holds_what_its_stage_computes(model: str) -> None:
    made = compiled(model)
    stages = stage_views(made.lowered, made.plan)
    views = {view["name"]: view for view in stages["views"]}
    assert list(views) == ["imported", "recognised", "fused", "legal", "plan"]
    for name, graph in (("imported", made.lowered.written), ("legal", made.lowered.graph)):
        computed = [v.op.name for v in graph.values if v.op not in leaf.LEAVES or v.op is leaf.ITEM]
        assert sorted(drawn(stages, views[name])) == sorted(computed)
    assert sorted(drawn(stages, views["plan"])) == sorted(s.value.op.name for s in made.plan.steps)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_kernels_of_the_plan_are_those_of_the_report(model: str) -> None:
    made = compiled(model)
    report = made.report()
    stages = stage_views(made.lowered, made.plan)
    plan = stages["views"][-1]
    kernels = [k for k in plan["kernels"] if k >= 0]
    assert sorted(kernels) == list(range(len(report.kernels)))
    words = stages["words"]
    for at, number in enumerate(plan["kernels"]):
        if number >= 0:
            kernel = report.kernels[int(number)]
            assert (words[plan["names"][at]], words[plan["ops"][at]]) == (kernel.name, kernel.op)
            assert words[plan["types"][at]] == kernel.type
            assert bool(plan["late"][at]) == (kernel.phase == "bind")
            room = stages["rooms"][plan["rooms"][at]]
            assert len(room["chips"]) == len(kernel.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_gap_of_the_report_is_drawn(model: str) -> None:
    made = compiled(model)
    report = made.report()
    plan = stage_views(made.lowered, made.plan)["views"][-1]
    number = {k.name: i for i, k in enumerate(report.kernels)}
    told = {(number[b.producer], number[b.consumer]) for b in report.boundaries}
    between = {
        (plan["kernels"][j], kernel)
        for kernel, operands in zip(plan["kernels"], plan["operands"], strict=True)
        for j in operands
        if kernel >= 0 and plan["kernels"][j] >= 0
    }
    assert told == between


@pytest.mark.slow
def test_nodes_as_written_end_where_the_report_says() -> None:
    made = compiled("llama")
    report = made.report()
    stages = stage_views(made.lowered, made.plan)
    imported = stages["views"][0]
    home = {stages["words"][n]: k for n, k in zip(imported["names"], imported["kernels"], strict=True)}
    for number, kernel in enumerate(report.kernels):
        assert all(home[node.name] == number for node in kernel.nodes)


def test_repeated_layers_are_folded() -> None:
    made = compiled("bert")
    for view in stage_views(made.lowered, made.plan)["views"]:
        assert max(band["count"] for band in view["bands"]) == 2, view["name"]


@pytest.mark.slow
def test_a_kernel_of_many_ops_is_drawn_around_all_of_them() -> None:
    made = compiled("bert", "cuda")
    stages = stage_views(made.lowered, made.plan)
    assert max(len(room["chips"]) for room in stages["rooms"]) > 4

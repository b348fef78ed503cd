"""`dovetail plan`: memory and steps, as text and as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import SMALL, Shell


@pytest.mark.slow
def test_totals_add_up(shell: Shell) -> None:
    plan = shell("plan", SMALL["llama"], "--json").data
    assert plan["schema_version"] == 1 and plan["target"] == "cpu" and plan["symbols"] == []
    assert plan["arena_bytes"] == plan["unshared_bytes"] - plan["bytes_saved"]
    assert 0 < plan["peak_bytes"] <= plan["arena_bytes"] <= plan["unshared_bytes"]
    slots = [slot for step in plan["steps"] for slot in step["slots"]]
    ends = {pool: 0 for pool in ("arena", "bound", "scratch")}
    for slot in slots:
        assert slot["offset"] % plan["alignment"] == 0
        ends[slot["pool"]] = max(ends[slot["pool"]], slot["offset"] + slot["size"])
    assert ends["arena"] <= plan["arena_bytes"] < ends["arena"] + plan["alignment"]
    assert plan["outputs"] == {"logits": "f32[1, 8, 100]"}


@pytest.mark.slow
def test_views_lie_inside_what_they_view(shell: Shell) -> None:
    plan = shell("plan", SMALL["llama"], "--json").data
    known = {s["value"] for step in plan["steps"] for s in step["slots"]} | set(plan["inputs"]) | set(plan["params"])
    assert plan["views"]
    assert any(view["of"] in known for view in plan["views"])


@pytest.mark.slow
def test_text_has_totals_and_every_step(shell: Shell) -> None:
    said, plan = shell("plan", SMALL["llama"]).out, shell("plan", SMALL["llama"], "--json").data
    assert f"arena        {plan['arena_bytes']} bytes a run" in said
    assert f"peak         {plan['peak_bytes']} bytes" in said
    assert f"saved        {plan['bytes_saved']} bytes of {plan['unshared_bytes']}" in said
    for phase in ("bind", "run"):
        assert f"{phase}: {sum(s['phase'] == phase for s in plan['steps'])} steps" in said
    assert all(f"\n  {step['name']} " in said for step in plan["steps"])


def test_a_result_that_takes_over_the_memory_of_an_operand_is_told(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "chain.txt"
    path.write_text("graph chain(x: f32[16]) {\n  %0 = exp(x)\n  %1 = tanh(%0)\n  return y = %1\n}\n")
    said = shell("plan", str(path), "--without", "mark_regions").out
    assert "tanh_1  %1  f32[16]  arena 0+64 in place of %0" in said
    plan = shell("plan", str(path), "--without", "mark_regions", "--json").data
    assert [step["over"] for step in plan["steps"]] == [None, "%0"]


@pytest.mark.slow
def test_sizes_that_are_not_known_are_text(shell: Shell, layer: str) -> None:
    plan = shell("plan", layer, "--json").data
    assert plan["symbols"] == ["rows"] and isinstance(plan["arena_bytes"], str) and "rows" in plan["arena_bytes"]
    assert "symbols      rows" in shell("plan", layer).out
    special = shell("plan", layer, "--size", "rows=5", "--json").data
    assert special["arena_bytes"] == 64 and special["steps"][0]["slots"][0]["size"] == 5 * 3 * 4


@pytest.mark.slow
def test_donations_are_told(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "append.txt"
    lines = ["graph append(x: f32[8, 4], at: i64[1, 1], row: f32[1, 4]) {", "  %0 = scatter_nd(x, at, row)"]
    path.write_text("\n".join([*lines, "  return y = %0 into x", "}", ""]))
    said = shell("plan", str(path)).out
    assert "donated      x to y, in place" in said and "memory of x in place of x" in said
    told = shell("plan", str(path), "--json").data
    assert told["donations"] == [{"output": "y", "input": "x", "copied_bytes": 0, "reason": ""}]
    assert told["steps"][0]["slots"][0]["donor"] == "x" and told["arena_bytes"] == 0
    assert shell("run", str(path), "--random", "0").code == 0

"""`dovetail explain --html`: the page beside the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import SMALL, Shell


def embedded(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="source">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(found[1])


def without_clock(report: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on how long passes took."""
    return {**report, "passes": [(p["name"], p["nodes_after"]) for p in report["passes"]]}


@pytest.mark.slow
def test_the_page_has_the_numbers_that_json_has(shell: Shell, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    said = shell("explain", SMALL["bert"], "--json", "--html", str(place))
    assert said.code == 0 and str(place) in said.err
    assert embedded(place)["report"] == said.data
    plan = shell("plan", SMALL["bert"], "--json").data
    arena = embedded(place)["arena"]
    assert (arena["size"], arena["peak"]) == (plan["arena_bytes"], plan["peak_bytes"])
    placed = [s for step in plan["steps"] for s in step["slots"] if s["pool"] == "arena"]
    assert [(s["offset"], s["size"]) for s in arena["slots"]] == [(s["offset"], s["size"]) for s in placed]


@pytest.mark.slow
def test_text_says_the_same_with_a_page_and_without(shell: Shell, layer: str, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    assert shell("explain", layer, "--html", str(place)).out == shell("explain", layer).out
    again = shell("explain", layer, "--json").data
    assert without_clock(embedded(place)["report"]) == without_clock(again)


def test_a_gate_that_fails_leaves_the_page(shell: Shell, wrong_bias: str, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    assert shell("explain", wrong_bias, "--without=fuse_epilogues", "--require-clean", "--html", str(place)).code == 4
    assert embedded(place)["report"]["missed"]


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
def test_every_target_has_a_page(target: str, shell: Shell, layer: str, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    assert shell("explain", layer, "--target", target, "--html", str(place)).code == 0
    assert (embedded(place)["code"] is not None) == (target != "reference")


def test_a_page_that_cannot_be_written_is_a_user_error(shell: Shell, layer: str, tmp_path: Path) -> None:
    said = shell("explain", layer, "--html", str(tmp_path / "missing" / "report.html"))
    assert said.code == 1 and "the page cannot be written" in said.err and "hint: " in said.err
    assert not said.out

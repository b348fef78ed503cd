"""`dovetail profile`, `dovetail trace` and `dovetail explain --measure`. No test asserts a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import SMALL, Shell
from tests.report.test_trace import check_well_formed

pytestmark = pytest.mark.serial  # it measures runs


def test_a_profile_names_kernels_and_places(shell: Shell, layer: str) -> None:
    said = shell("profile", layer, "--size", "rows=4", "--runs", "2")
    assert said.code == 0
    first, second, *rest = said.out.splitlines()
    assert first.startswith("layer: ") and "(median of 2, ±" in first and first.endswith("of the roofline")
    assert second.endswith("beside kernels")
    assert any("linear f32[4, 3]" in line for line in rest) and rest[-1] == "calibration: built-in"


def test_a_profile_as_data(shell: Shell) -> None:
    told = shell("profile", SMALL["bert"], "--runs", "1", "--threads", "1", "--json").data
    assert told["schema_version"] == 1 and (told["runs"], told["threads"]) == (1, 1)
    assert told["kernels"] and all(k["seconds"] > 0 for k in told["kernels"])
    assert any("layers.0" in place for k in told["kernels"] for place in k["where"])


def test_explain_shows_measured_beside_predicted(shell: Shell, layer: str) -> None:
    said = shell("explain", layer, "--size", "rows=4", "--measure", "--runs", "2")
    line = said.out.splitlines()[1]
    assert line.startswith("predicted ") and "measured " in line and line.endswith("of the roofline")
    told = shell("explain", layer, "--size", "rows=4", "--measure", "--runs", "2", "--json").data
    assert told["schema_version"] == 1 and told["measured"]["runs"] == 2
    assert {k["kernel"] for k in told["measured"]["kernels"]} <= {k["name"] for k in told["kernels"]}


def test_a_trace_is_written(shell: Shell, layer: str, tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    told = shell("trace", layer, "--size", "rows=4", "--runs", "2", "--out", str(place), "--json").data
    assert told["file"] == str(place)
    found = json.loads(place.read_text())
    check_well_formed(found)
    assert len(found["traceEvents"]) == told["events"]
    spans = [e["name"] for e in found["traceEvents"] if e["ph"] == "X"]
    assert {"import", "passes and plan", "plan", "codegen", "bind", "first run", "run 1", "run 2", "linear"} <= set(
        spans
    )


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["profile", "--runs", "0"], "--runs 0"),
        (["profile", "--top", "0"], "--top 0"),
        (["profile", "--threads", "-1"], "--threads -1"),
        (["profile", "--input", "z=1"], "there is no input 'z'"),
        (["trace", "--runs", "0"], "--runs 0"),
        (["trace", "--out", "."], "the trace cannot be written"),
        (["explain", "--measure", "--runs", "0"], "--runs 0"),
    ],
)
def test_wrong_options_are_user_errors(argv: list[str], found: str, shell: Shell, layer: str) -> None:
    command, *options = argv
    assert found in shell.fails(1, command, layer, "--size", "rows=4", *options)


def test_sizes_that_nothing_tells_are_asked_for(shell: Shell, layer: str) -> None:
    assert "--size rows=1" in shell.fails(1, "profile", layer)


def test_a_target_that_does_not_tell_is_refused(shell: Shell, layer: str) -> None:
    assert "does not tell" in shell.fails(2, "profile", layer, "--size", "rows=4", "--target", "reference")

"""`dovetail diff`: what changed between two compilations, and the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import SMALL, Shell


@pytest.mark.slow
def test_a_model_is_like_itself(shell: Shell, layer: str) -> None:
    said = shell("diff", layer, layer, "--gate")
    assert said.code == 0 and "the same fusions, the same misses" in said.out


@pytest.mark.slow
def test_options_of_one_side(shell: Shell, layer: str) -> None:
    said = shell(
        "diff",
        layer,
        layer,
        "--after-options",
        "--without linear --without mark_regions --without fuse_epilogues",
        "--json",
    )
    assert said.code == 0
    assert (said.data["before"]["kernels"], said.data["after"]["kernels"]) == (1, 3)
    assert {"what": "linear", "before": 1, "after": 0} in said.data["changes"]


@pytest.mark.slow
def test_the_gate_names_what_became_worse(shell: Shell, layer: str) -> None:
    said = shell("diff", layer, layer, "--after-options=--without linear --without fuse_epilogues", "--gate")
    assert said.code == 4
    assert "linear made 1 kernels and makes 0" in said.err and "kernels became" in said.err
    assert (
        shell("diff", layer, layer, "--before-options=--without linear --without fuse_epilogues", "--gate").code == 0
    ), "better is no harm"


@pytest.mark.slow
def test_a_saved_report_is_a_side(shell: Shell, layer: str, tmp_path: Path) -> None:
    saved = tmp_path / "before.json"
    saved.write_text(shell("explain", layer, "--json").out)
    said = shell("diff", str(saved), layer, "--gate")
    assert said.code == 0 and "the same fusions" in said.out
    refused = shell("diff", str(saved), layer, "--measure")
    assert refused.code == 1 and "cannot be run" in refused.err


@pytest.mark.exhaustive
def test_measured_sides_are_compared_by_results(shell: Shell) -> None:
    said = shell(
        "diff",
        SMALL["bert"],
        SMALL["bert"],
        "--after-options",
        "--without attention",
        "--measure",
        "--runs",
        "2",
        "--json",
    )
    assert said.code == 0
    assert said.data["before"]["measured_seconds"] > 0 and said.data["after"]["measured_seconds"] > 0
    assert 0 <= said.data["deviations"]["last_hidden_state"] < 1e-4


@pytest.mark.exhaustive
def test_results_beyond_the_tolerance_fail_the_gate(shell: Shell) -> None:
    model = SMALL["llama"]
    said = shell(
        "diff", model, model, "--after-options=--without fuse", "--measure", "--runs=1", "--gate", "--tolerance=0"
    )
    assert said.code == 4 and "differs by" in said.err


@pytest.mark.slow
def test_bad_sides_are_refused_in_words(shell: Shell, layer: str, tmp_path: Path) -> None:
    broken = tmp_path / "x.json"
    broken.write_text("{")
    no_report = tmp_path / "y.json"
    no_report.write_text('{"schema_version": 1}')
    other = tmp_path / "z.json"
    other.write_text('{"schema_version": 7}')
    for side, words in ((broken, "cannot be read"), (no_report, "not a report"), (other, "version 7")):
        said = shell("diff", str(side), layer)
        assert said.code == 1 and words in said.err
    assert shell("diff", str(tmp_path / "none.json"), layer).code == 1
    said = shell("diff", layer, layer, "--after-options=--json")
    assert said.code == 1 and "'--json'" in said.err

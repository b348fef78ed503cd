"""`dovetail bisect`: the rule application that moves an output too far, by halves."""

from __future__ import annotations

import pytest

from tests.cli.commands import SMALL, Shell
from tests.cli.test_verify import wrong_rule

__all__ = ["wrong_rule"]


@pytest.mark.slow
def test_nothing_to_find(shell: Shell, layer: str) -> None:
    said = shell("bisect", layer)
    assert said.code == 0 and said.out.startswith("nothing moves an output so far")
    told = shell("bisect", layer, "--json").data
    assert told["culprit"] is None and told["final"]["deviation"] < 1e-6


def test_a_wrong_rule_is_named_with_node_sides_and_deviations(shell: Shell, layer: str, wrong_rule: None) -> None:
    said = shell("bisect", layer, "--bound", "1e-3")
    assert said.code == 5
    assert said.out.startswith("sums_are_differences  is the first to move an output beyond 0.001")
    assert "at add %1 at the sum" in said.out and "add(%0, b) → sub(%0, b)" in said.out
    assert "before it, y deviates by 0\n" in said.out and "after it, y deviates by" in said.out
    assert "sums_are_differences at add %1" in said.err and "--without sums_are_differences" in said.err
    culprit = shell("bisect", layer, "--json").data["culprit"]
    assert (culprit["rule"], culprit["node"], culprit["pass"]) == ("sums_are_differences", "%1", "canonicalize")
    assert culprit["deviation_before"]["deviation"] == 0 < culprit["deviation_after"]["deviation"]


@pytest.mark.slow
def test_in_a_whole_model_the_first_of_many_is_found(shell: Shell, wrong_rule: None) -> None:
    told = shell("bisect", SMALL["bert"], "--json").data
    assert told["precision"] == "in float64" and told["runs"] <= 3 + told["applications"].bit_length()
    assert told["culprit"]["rule"] == "sums_are_differences"


@pytest.mark.slow
def test_one_output_may_be_asked_about(shell: Shell, layer: str) -> None:
    assert shell("bisect", layer, "--output", "y").code == 0
    assert "there is no output 'z'" in shell.fails(1, "bisect", layer, "--output", "z")
    assert "not negative" in shell.fails(1, "bisect", layer, "--bound", "nan")


@pytest.mark.exhaustive
def test_a_bound_below_the_precision_blames_no_rule(shell: Shell) -> None:
    said = shell("bisect", SMALL["bert"], "--bound", "1e-12", "--without", "fuse", "--without", "canonicalize")
    assert said.code == 5 and "before any rule is applied" in said.err

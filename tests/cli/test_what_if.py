"""`dovetail what-if` and `--apply`: what-ifs as text and JSON, predicted and measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Shell

BIG = """graph layer(x: f32[64, 96]) {
  param w: f32[96, 96]
  param b: f32[64, 96]
  %0 = matmul(x, w) : f32[64, 96]  @text "the product"
  %1 = add(%0, b) : f32[64, 96]  @text "the sum"
  %2 = relu(%1) : f32[64, 96]
  return y = %2
}
"""
"""A bias of one row for each row, as a small model of ours has it."""


APART = "--without=fuse_epilogues"
"""What does not fit a declared op would join the matmul as its epilogue otherwise."""


@pytest.fixture
def missed(tmp_path: Path) -> str:
    path = tmp_path / "missed.txt"
    path.write_text(BIG)
    return str(path)


@pytest.mark.slow
def test_what_a_change_would_bring_is_told(shell: Shell, missed: str) -> None:
    said = shell("what-if", missed, APART)
    assert said.code == 0 and not said.err
    lines = [line.strip() for line in said.out.splitlines()]
    assert lines[0].startswith("layer on cpu: 2 kernels, predicted ")
    assert "need not compute the same" in lines[1]
    assert any(line.startswith("1  1 × linear: bias_is_a_vector   costs ") for line in lines)
    assert "assume: the bias is one vector for all rows" in lines
    assert "b: f32[64, 96] → f32[96]" in lines and "a new param b_assumed: f32[96]" in lines
    assert "linear fires 1 of 1   kernels 2 → 1" in lines
    assert any(line.startswith("predicted ") and " gains " in line for line in lines)
    assert not any(line.startswith("measured ") for line in lines)


@pytest.mark.slow
def test_what_ifs_as_data(shell: Shell, missed: str) -> None:
    data = shell("what-if", missed, APART, "--miss", "linear", "--json").data
    assert (data["schema_version"], data["graph"], data["target"]) == (1, "layer", "cpu")
    (found,) = data["what_ifs"]
    assert (found["rule"], found["reason"], found["count"], found["fires"]) == ("linear", "bias_is_a_vector", 1, 1)
    assert found["remedy"] == "the bias is one vector for all rows" and not found["refusal"]
    assert found["fresh"] == [{"name": "b_assumed", "kind": "param", "type": "f32[96]"}]
    assert (data["before"]["kernels"], found["after"]["kernels"]) == (2, 1)
    gain = data["before"]["predicted_seconds"] - found["after"]["predicted_seconds"]
    assert found["predicted_gain_seconds"] == gain > 0 and found["measured_gain_seconds"] is None


@pytest.mark.slow
def test_both_are_measured(shell: Shell, missed: str) -> None:
    (found,) = shell("what-if", missed, APART, "--apply", "--runs", "2", "--json").data["what_ifs"]
    assert found["measured_before_seconds"] > 0 and found["after"]["measured_seconds"] > 0
    gain = found["measured_before_seconds"] - found["after"]["measured_seconds"]
    assert found["measured_gain_seconds"] == pytest.approx(gain)
    said = shell("what-if", missed, APART, "--miss", "1", "--apply", "--runs", "1")
    assert said.code == 0 and "\n   measured " in said.out


@pytest.mark.slow
def test_a_miss_without_a_remedy_says_so(shell: Shell, missed: str) -> None:
    path = Path(missed)
    batched = BIG.replace("64", "2, 64").replace("param w: f32[96, 96]", "param w: f32[2, 96, 96]")
    path.write_text(batched.replace("param b: f32[2, 64, 96]", "param b: f32[96]"))
    said = shell("what-if", missed, APART, "--miss", "linear")
    assert said.code == 0
    assert "no automatic remedy for weight_is_a_matrix" in said.out
    (found,) = shell("what-if", missed, APART, "--apply", "--miss", "linear", "--runs=1", "--json").data["what_ifs"]
    assert found["remedy"] is None and found["after"] is None and found["measured_gain_seconds"] is None


@pytest.mark.slow
def test_a_clean_model_has_nothing_to_assume(shell: Shell, layer: str) -> None:
    said = shell("what-if", layer)
    assert said.code == 0 and "there is nothing to assume" in said.out
    assert shell("what-if", layer, "--json").data["what_ifs"] == []


@pytest.mark.slow
def test_what_cannot_be_asked_for_together(shell: Shell, missed: str, tmp_path: Path) -> None:
    assert "there is no miss 'swiglu'" in shell.fails(1, "what-if", missed, APART, "--miss", "swiglu")
    for option in ("--measure", "--require-clean", "--require=linear", f"--html={tmp_path / 'x.html'}"):
        assert option.partition("=")[0] in shell.fails(1, "what-if", missed, APART, option)

"""`dovetail explain`: the report as text and JSON, and its gates."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.cli import explain
from dovetail.report.paint import Look
from tests.cli.commands import SMALL, Shell
from tests.golden import Golden


@pytest.mark.slow
@pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)
def test_reports_of_the_built_in_models(model: str, shell: Shell, golden: Golden) -> None:
    said = shell("explain", model)
    assert said.code == 0 and not said.err
    golden.file(f"tests/golden/explain/{model.partition(':')[0]}.txt", said.out)


def test_a_layer_is_one_kernel(shell: Shell, layer: str) -> None:
    said = shell("explain", layer)
    assert said.code == 0
    assert said.out.startswith("layer on cpu   6 nodes → 1 kernel\npredicted ")
    assert "1 × linear" in said.out and "MISSED" not in said.out


def test_json_has_the_fields_of_the_schema(shell: Shell, wrong_bias: str) -> None:
    report = shell("explain", wrong_bias, "--without", "fuse_epilogues", "--json").data
    assert report["schema_version"] == 1
    assert (report["graph"], report["target"], report["nodes_before"]) == ("layer", "cpu", 6)
    (missed,) = [m for m in report["missed"] if m["rule"] == "linear"]
    assert missed["reason"] == "bias_is_a_vector" and "f32[2, 3]" in missed["message"]
    assert missed["hint"] == "" and missed["node"].startswith("%"), "no change of the bias keeps the numbers"
    assert missed["gain_seconds"] == 0 and missed["changes"] == {} and missed["instead"] == ""
    assert missed["bytes"] > 0 and missed["seconds"] > 0
    assert all({"rule", "nodes", "kernel"} <= set(f) for f in report["fused"])


@pytest.mark.slow
def test_a_required_rule_that_fires_passes(shell: Shell, layer: str) -> None:
    assert shell("explain", layer, "--require", "linear=1", "--require-clean").code == 0
    assert shell("explain", layer, "--require", "linear").code == 0


def test_a_required_rule_that_does_not_fire_fails_with_its_reason(shell: Shell, wrong_bias: str) -> None:
    said = shell("explain", wrong_bias, "--without", "fuse_epilogues", "--require", "linear=1")
    assert said.code == 4
    assert said.out.startswith("layer on cpu"), "the report is printed all the same"
    assert "linear: 0 of 1" in said.err and "bias_is_a_vector" in said.err


@pytest.mark.slow
def test_a_miss_fails_where_none_is_allowed(shell: Shell, wrong_bias: str, layer: str) -> None:
    said = shell("explain", wrong_bias, "--without", "fuse_epilogues", "--require-clean", "--json")
    assert said.code == 4 and said.data["missed"]
    assert "bias_is_a_vector" in said.err
    assert shell("explain", layer, "--require-clean").code == 0


@pytest.fixture
def interposed(tmp_path: Path) -> Callable[[str], str]:
    """Two attentions as text; in the second a line stands between the softmax and its values."""

    def write(line: str) -> str:
        text = ATTENTIONS.replace("  # HERE", line)
        (tmp_path / "two.txt").write_text(text, encoding="utf-8")
        return str(tmp_path / "two.txt")

    return write


ATTENTIONS = """graph two(x: f32[1, 4, 128, 64], k: f32[1, 4, 128, 64], v: f32[1, 4, 128, 64]) {
  %0 = permute(k) {order=(-1, -2)} : f32[1, 4, 64, 128]
  %1 = matmul(x, %0) : f32[1, 4, 128, 128]
  %2 = softmax(%1) : f32[1, 4, 128, 128]
  %3 = matmul(%2, v) : f32[1, 4, 128, 64]
  %4 = matmul(%3, %0) : f32[1, 4, 128, 128]
  %5 = softmax(%4) : f32[1, 4, 128, 128]
  # HERE
  %8 = matmul(%7, v) : f32[1, 4, 128, 64]
  return y = %8
}
"""
ROUNDED = """  %6 = cast(%5) {dtype=f16} : f16[1, 4, 128, 128]
  %7 = cast(%6) {dtype=f32} : f32[1, 4, 128, 128]"""
TURNED = "  %7 = permute(%5) {order=(-1, -2)} : f32[1, 4, 128, 128]"
BENT = "  %7 = sinh(%5) : f32[1, 4, 128, 128]"


@pytest.mark.slow
@pytest.mark.parametrize(("line", "op"), [(ROUNDED, "cast, cast"), (TURNED, "permute")])
def test_gates_see_what_stands_between_two_ops_of_a_rule(
    line: str, op: str, interposed: Callable[[str], str], shell: Shell
) -> None:
    model = interposed(line)
    said = shell("explain", model, "--require", "attention=2")
    assert said.code == 4 and "attention: 1 of 2" in said.err
    assert f"op_between: all its ops are there; {op} stands in between softmax and matmul" in said.err
    clean = shell("explain", model, "--require-clean", "--json")
    assert clean.code == 4
    (missed,) = [m for m in clean.data["missed"] if m["rule"] == "attention"]
    assert missed["seconds"] == missed["gain_seconds"] > 0 and missed["between"] == op.split(", ")
    followed = shell("what-if", model, "--json").data["what_ifs"]
    assert [w["fires"] for w in followed if w["rule"] == "attention"] == [1]


def test_what_computes_between_two_ops_of_a_rule_is_told_and_no_loss(
    interposed: Callable[[str], str], shell: Shell
) -> None:
    model = interposed(BENT)
    assert shell("explain", model, "--require-clean").code == 0
    said = shell("explain", model, "--require", "attention=2")
    assert said.code == 4 and "sinh stands in between softmax and matmul" in said.err
    everything = shell("explain", model, "--all").out
    assert "NEAR" in everything and "sinh stands in between softmax and matmul" in everything


def test_gaps_are_listed_one_by_one_with_everything(interposed: Callable[[str], str], shell: Shell) -> None:
    report, text = (shell("explain", interposed(BENT), how) for how in ("--json", "--all"))
    assert report.data["boundaries"]
    assert all(" ".join(b["message"].split()) in " ".join(text.out.split()) for b in report.data["boundaries"])


@pytest.mark.slow
def test_rules_and_passes_are_switched_off_by_name(shell: Shell, layer: str) -> None:
    without = shell(
        "explain", layer, "--without", "linear", "--without", "mark_regions", "--without", "fuse_epilogues", "--json"
    ).data
    assert not without["fused"] and len(without["kernels"]) == 3


@pytest.mark.slow
def test_sizes_are_specialised(shell: Shell, layer: str) -> None:
    assert shell("explain", layer, "--json").data["assumed_sizes"] == {"rows": 128}
    special = shell("explain", layer, "--size", "rows=16", "--json").data
    assert special["assumed_sizes"] == {} and special["kernels"][0]["type"] == "f32[16, 3]"


@pytest.mark.slow
def test_one_of_several_sizes_may_stay_open(shell: Shell) -> None:
    model = SMALL["llama_step"].replace("batch=1", "batch=b")
    assert shell("explain", model, "--size", "b=2", "--json").data["assumed_sizes"].keys() == {"p"}


@pytest.mark.slow
def test_a_summary_fits_a_screen_and_all_can_be_asked_for(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    steps = [f"  %{i} = relu({'x' if i == 0 else f'%{i - 1}'}) : f32[{n}]" for i, n in enumerate([4] * 20)]
    kinds = [f"  %{20 + i} = det(m{i})" for i in range(12)]
    inputs = ", ".join(["x: f32[4]", *(f"m{i}: f32[{i + 2}, {i + 2}]" for i in range(12))])
    returns = ", ".join(["y = %19", *(f"d{i} = %{20 + i}" for i in range(12))])
    path.write_text("\n".join([f"graph many({inputs}) {{", *steps, *kinds, f"  return {returns}", "}", ""]))
    short, everything = shell("explain", str(path)).out, shell("explain", str(path), "--all").out
    assert len(short.splitlines()) <= 40 and "others" not in everything
    wide = shell("explain", str(path), "--without", "mark_regions").out
    assert len(wide.splitlines()) <= 40


@pytest.mark.heavy
def test_repeated_blocks_are_found_by_their_structure(shell: Shell) -> None:
    told = shell("explain", SMALL["bert"].replace("layers=2", "layers=5"), "--json").data
    (repeat,) = told["repeats"]
    ops = {k["name"]: (k["op"], k["type"]) for k in told["kernels"]}
    copies = [[ops[name] for name in copy] for copy in repeat["kernels"]]
    assert repeat["count"] == len(copies) == 5 and all(copy == copies[0] for copy in copies)
    assert "attention" in {op for op, _ in copies[0]}


@pytest.mark.slow
def test_a_terminal_is_given_colours_and_its_width(
    shell: Shell, wrong_bias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shell("explain", wrong_bias, "--without", "fuse_epilogues").out
    monkeypatch.setattr(explain, "look_of", lambda stream: Look(60, colour=True))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    painted = shell("explain", wrong_bias, "--without", "fuse_epilogues").out
    assert "\x1b[33mMISSED" in painted and "\x1b" not in plain
    bare = re.sub(r"\x1b\[[0-9;]*m", "", painted)
    assert all(len(line) <= 60 for line in bare.splitlines()) and bare.split() == plain.split()


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
def test_every_target_can_be_reported(target: str, shell: Shell, layer: str) -> None:
    assert shell("explain", layer, "--target", target, "--json").data["target"] == target


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--without", "fusee"], "there is no pass or rule 'fusee'"),
        (["--without", "legalize"], "legalize cannot be switched off"),
        (["--require", "linearr=1"], "there is no rule 'linearr' to require"),
        (["--require", "linear=one"], "--require linear=one"),
        (["--require", "linear="], "--require linear="),
        (["--size", "rows"], "--size rows"),
        (["--size", "rows=-1"], "--size rows=-1"),
        (["--size", "rows=4", "--size", "rows=5"], "--size rows=5 after rows=4"),
        (["--size", "cols=4"], "layer has no symbol 'cols'"),
        (["--size", "rows=99999999999999999999"], "--size rows=99999999999999999999"),
    ],
)
def test_wrong_options_are_user_errors(options: list[str], found: str, shell: Shell, layer: str) -> None:
    assert found in shell.fails(1, "explain", layer, *options)


@pytest.mark.slow
def test_everything_as_json_has_the_kernels_that_were_considered(shell: Shell, layer: str) -> None:
    plain, whole = (shell("explain", layer, *more, "--json").data for more in ((), ("--all",)))
    considered = whole.pop("considered")
    assert "considered" not in plain and whole["kernels"] == plain["kernels"]
    assert list(considered) == [kernel["name"] for kernel in plain["kernels"]]
    for kernel in plain["kernels"]:
        told = considered[kernel["name"]]
        assert [c["taken"] for c in told].count(True) == (kernel["phase"] == "run")


def test_a_target_that_there_is_not_has_the_exit_code_of_the_page(shell: Shell, layer: str) -> None:
    assert "there is no target 'tpu'" in shell.fails(2, "explain", layer, "--target", "tpu")


def test_a_gate_without_a_reason_does_not_point_at_one(shell: Shell, layer: str) -> None:
    said = shell("explain", layer, "--require", "swiglu=1")
    assert said.code == 4
    assert "a required fusion is missing" in said.err and "see the reasons above" not in said.err

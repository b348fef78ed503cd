"""`dovetail why`: one node, every rule tried at it, and where it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

import dovetail
from dovetail import ops
from dovetail.dtypes import f32
from tests.cli.commands import SMALL, Shell


def test_a_fused_node_tells_its_chain_and_its_kernel(shell: Shell, layer: str) -> None:
    said = shell("why", layer, "%0")
    assert said.code == 0 and not said.err
    assert said.out.startswith("%0 = matmul: f32[rows, 3] at the product\n")
    assert "computed together with %1, %2 by the kernel" in said.out and "linear: f32[rows, 3]" in said.out
    assert "by linear" in said.out


def test_a_refused_rule_tells_guard_and_finding(shell: Shell, wrong_bias: str) -> None:
    said = shell("why", wrong_bias, "%2", "--without=fuse_epilogues")
    refused = said.out[said.out.index("  refused     linear [") :]
    assert "bias_is_a_vector: the bias is f32[2, 3]" in refused
    assert "hint" not in refused, "no change of this bias keeps the numbers"


def test_json_has_every_attempt(shell: Shell, wrong_bias: str) -> None:
    told = shell("why", wrong_bias, "%2", "--without=fuse_epilogues", "--json").data
    assert told["schema_version"] == 1
    assert (told["node"], told["op"], told["type"]) == ("%2", "relu", "f32[2, 3]")
    attempt = next(a for a in told["attempts"] if a["rule"] == "linear")
    assert attempt["outcome"] == "refused" and attempt["reason"] == "bias_is_a_vector"
    assert attempt["matched"] == attempt["size"] == 3
    assert any(m["reason"] == "bias_is_a_vector" for m in told["missed"])
    assert told["kernel"]["nodes"][-1]["name"] == "%2"


@pytest.mark.slow
def test_a_rule_that_got_part_of_the_way_tells_how_far(shell: Shell) -> None:
    told = shell("why", SMALL["bert"], "layers.0 softmax", "--json").data
    for attempt in told["attempts"]:
        if attempt["outcome"] == "mismatched":
            assert 0 < attempt["matched"] < attempt["size"] and attempt["message"].startswith("wanted ")


@pytest.mark.slow
def test_an_origin_is_enough_where_it_is_one_node(shell: Shell, layer: str) -> None:
    assert shell("why", layer, "the sum", "--json").data["node"] == "%1"
    assert shell("why", layer, "produ", "--json").data["node"] == "%0"


@pytest.mark.slow
def test_words_narrow_an_origin_down(shell: Shell) -> None:
    told = shell("why", SMALL["llama"], "layers.1 softmax", "--json").data
    assert (told["op"], told["where"]) == ("softmax", "layers.1")


@pytest.mark.slow
def test_an_ambiguous_origin_lists_its_nodes(shell: Shell, layer: str) -> None:
    said = shell.fails(1, "why", layer, "the")
    assert "2 nodes are at 'the'" in said
    assert "matmul %0 at the product" in said and "add %1 at the sum" in said
    many = shell.fails(1, "why", SMALL["bert"], "layers.1")
    assert "nodes are at 'layers.1'" in many and "more" in many and "at layers.0" not in many


def test_an_unknown_node_lists_what_there_is(shell: Shell, layer: str) -> None:
    said = shell.fails(1, "why", layer, "%9")
    assert "no node is named '%9'" in said and "matmul %0" in said and "--stage mir" in said
    shell.fails(1, "why", layer, "")


@pytest.mark.slow
def test_inputs_and_parameters_are_computed_by_nothing(shell: Shell, layer: str) -> None:
    assert "x (input) is computed by no kernel" in shell.fails(1, "why", layer, "x")
    assert "w (param) is computed by no kernel" in shell.fails(1, "why", layer, "w")


@pytest.mark.slow
@pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)
def test_names_are_those_of_stage_mir_and_of_the_report(model: str, shell: Shell) -> None:
    text = shell("show", model, "--stage", "mir").out
    report = shell("explain", model, "--json").data
    lines = {line.split(" = ")[0].strip(): line for line in text.splitlines() if line.startswith("  %")}
    for kernel in report["kernels"]:
        for node in kernel["nodes"]:
            assert f" = {node['op']}(" in lines[node["name"]]
    last = report["kernels"][-1]["nodes"][-1]
    told = shell("why", model, last["name"], "--json").data
    assert told["op"] == last["op"] and told["kernel"]["name"] == report["kernels"][-1]["name"]


@pytest.mark.slow
def test_what_canonicalisation_removes_is_told_with_the_kernel_that_reads_it(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "twice.txt"
    path.write_text("graph twice(x: f32[4]) {\n  %0 = neg(x)\n  %1 = neg(%0)\n  %2 = exp(%1)\n  return y = %2\n}\n")
    told = shell("why", str(path), "%0", "--json").data
    assert told["kernel"]["op"] == "exp" and told["attempts"] == []
    assert [n["name"] for n in told["kernel"]["absorbed"]] == ["%0", "%1"]
    assert "no kernel computes it" in shell("why", str(path), "%0").out


@pytest.mark.slow
def test_the_code_of_the_kernel_is_shown_as_it_is_compiled(shell: Shell, layer: str) -> None:
    plain = shell("why", layer, "%0")
    said = shell("why", layer, "%0", "--code", "llvm")
    assert said.code == 0 and said.out.startswith(plain.out.rstrip("\n"))
    told = shell("why", layer, "%0", "--code", "llvm", "--json").data["code"]
    assert told["form"] == "llvm" and "define void @" in told["text"] and told["text"] in said.out
    assert shell("why", layer, "%0", "--json").data["code"] is None


@pytest.mark.slow
def test_assembly_is_that_of_this_host(shell: Shell, layer: str) -> None:
    text = shell("why", layer, "%0", "--code", "asm", "--json").data["code"]["text"]
    assert "\tret" in text and "define" not in text
    said = shell("why", layer, "%0", "--code", "asm").out
    assert "its code (assembly for this host)" in said and "\\t" not in said and "        ret" in said


def test_a_notation_that_the_target_has_not_is_refused_with_those_it_has(shell: Shell, layer: str) -> None:
    said = shell.fails(1, "why", layer, "%0", "--code", "ptx")
    assert "cpu does not show code as 'ptx'" in said and "llvm, asm" in said


@pytest.mark.slow
def test_what_has_no_code_is_refused_with_its_reason(shell: Shell, layer: str, tmp_path: Path) -> None:
    said = shell.fails(2, "why", layer, "%0", "--code", "llvm", "--target", "reference")
    assert "the target reference has no code to show" in said
    path = tmp_path / "odd.txt"
    lines = ["graph odd(x: f32[4, 4]) {", "  param w: f32[4, 4]", "  %0 = det(x)", "  %1 = neg(x)", "  %2 = neg(%1)"]
    lines += ["  %3 = exp(%2)", "  %4 = exp(w)", "  %5 = matmul(%3, %4)", "  return d = %0, y = %5", "}", ""]
    path.write_text("\n".join(lines))
    assert "runs as NumPy on the host" in shell.fails(2, "why", str(path), "%0", "--code", "llvm")
    assert "no kernel computes it" in shell.fails(2, "why", str(path), "%1", "--code", "asm")
    assert "when parameters are bound" in shell.fails(2, "why", str(path), "%4", "--code", "asm")


@pytest.mark.slow
def test_kernels_that_were_considered_for_a_convolution_are_told(shell: Shell, tmp_path: Path) -> None:
    model = tmp_path / "net.txt"
    builder = dovetail.Builder("net", lines=False)
    x, w = builder.input("x", f32[1, 64, 56, 56]), builder.param("w", f32[64, 64, 3, 3])
    builder.output("y", ops.conv(x, w, padding=(1, 1, 1, 1)))
    model.write_text(dovetail.graphs.print_graph(builder.graph()))
    told = shell("why", str(model), "conv", "--json").data["considered"]
    (taken,) = [c for c in told if c["taken"]]
    assert taken["name"] == "winograd 2×4" and taken["seconds"] > 0 and taken["ratio"] == 1 and taken["bound"]
    others = [c for c in told if not c["taken"]]
    assert all(c["reason"] for c in others) and any(c["ratio"] and c["ratio"] > 1 for c in others)
    refused = next(c for c in others if c["name"] == "depthwise")
    assert refused["condition"] == "groups_have_one_channel_and_filter" and refused["found"] == "64 and 64"
    said = shell("why", str(model), "conv").out
    assert "kernels that were considered, the preferred first\n" in said and "  taken       winograd 2×4" in said
    assert "direct" in said and "by the machine model, bound by " in said


def test_every_kernel_tells_what_was_considered(shell: Shell, layer: str) -> None:
    told = shell("why", layer, "%0", "--json").data["considered"]
    assert [c["taken"] for c in told].count(True) == 1 and told[-1]["name"] == "host"
    assert all(c["reason"] for c in told if not c["taken"])


def test_the_host_is_taken_where_no_kernel_takes_a_step(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_text("graph odd(x: f32[4, 4]) {\n  %0 = det(x)\n  return d = %0\n}\n")
    told = shell("why", str(path), "%0", "--json").data["considered"]
    assert [c["name"] for c in told if c["taken"]] == ["host"]


def test_a_gpu_tells_its_table_too(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "map.txt"
    path.write_text("graph map(x: f32[4, 4]) {\n  %0 = exp(x)\n  return y = %0\n}\n")
    told = shell("why", str(path), "%0", "--target", "cuda", "--json").data["considered"]
    assert [c["name"] for c in told if c["taken"]] == ["map"] and "host" in [c["name"] for c in told]


def test_an_origin_is_named_in_letters_of_any_case(shell: Shell, layer: str) -> None:
    said = shell("why", layer, "THE Sum")
    assert said.code == 0 and said.out.startswith("%1 = add"), said

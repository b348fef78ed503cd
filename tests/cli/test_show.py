"""`dovetail show`: every stage as text, which reads back."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from dovetail.cli.show import Shown
from dovetail.ir.text import parse_graph, print_graph
from dovetail.plan.text import parse_plan, print_plan
from dovetail.runtime.vocabulary import vocabulary
from tests.cli.commands import LAYER, SMALL, Shell
from tests.egraph.engines import needs_egglog, run


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["hir", "mir", "canonical", "fused", "legal"])
@pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)
def test_stages_read_back(model: str, stage: str, shell: Shell) -> None:
    said = shell("show", model, "--stage", stage)
    assert said.code == 0 and not said.err
    assert print_graph(parse_graph(said.out, vocabulary())) == said.out


@pytest.mark.slow
def test_each_stage_shows_what_it_says(shell: Shell) -> None:
    assert "bert_layer(" in shell("show", SMALL["bert"], "--stage", "hir").out
    mir, fused = (shell("show", SMALL["bert"], "--stage", stage).out for stage in ("mir", "fused"))
    assert "bert_layer(" not in mir and "linear(" not in mir and "matmul(" in mir
    assert "linear(" in fused
    assert shell("show", SMALL["bert"]).out == fused


def test_mir_is_the_file_as_it_was_written(shell: Shell, layer: str) -> None:
    shown = parse_graph(shell("show", layer, "--stage", "mir").out, vocabulary())
    assert shown.outputs["y"] is parse_graph(LAYER, vocabulary()).outputs["y"]
    assert "%2 = relu(%1) : f32[rows, 3]" in print_graph(shown)


@pytest.mark.slow
def test_a_plan_reads_back(shell: Shell) -> None:
    said = shell("show", SMALL["llama"], "--stage", "lir")
    assert print_plan(parse_plan(said.out, vocabulary())) == said.out


@pytest.mark.exhaustive
def test_rules_are_those_that_are_looked_for(shell: Shell, layer: str) -> None:
    rules = shell("show", layer, "--stage", "rules").out
    assert "linear[x, w, b, act=relu]\n  relu(add(matmul(?x, ?w), ?b))" in rules
    assert "when bias_is_a_vector:" in rules
    assert "linear[" not in shell("show", layer, "--stage", "rules", "--without", "linear").out


@needs_egglog
def test_a_program_for_egglog_runs_there(shell: Shell, tmp_path: Path) -> None:
    said = shell("show", SMALL["resnet"], "--stage", "egglog")
    assert said.code == 0 and not said.err
    assert "conv_batch_norm" in said.out and "(check " in said.out
    run(said.out, tmp_path)


def test_an_unknown_stage_is_a_user_error(shell: Shell, layer: str) -> None:
    said = shell.fails(1, "show", layer, "--stage", "asm")
    assert all(stage in said for stage in get_args(Shown))

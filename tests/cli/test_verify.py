"""`dovetail verify`: models hold, and what does not is named with its node and an exit code."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.passes import pipeline
from dovetail.passes.canonical.rule import rule
from dovetail.passes.canonicalize import RULES, canonicalize
from tests.cli.commands import SMALL, Shell

GPT2 = Path(__file__).parents[1] / "data" / "exporters" / "gpt2-hf4__ts14__eager__dynamic.onnx"


@rule(ops.add)
def sums_are_differences(value: Value) -> Value | None:
    """Wrong wherever there is something to add."""
    return ops.sub(*value.operands)


@pytest.fixture
def wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "canonicalize", partial(canonicalize, rules=(*RULES, sums_are_differences)))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "llama_step"])
def test_models_hold(model: str, shell: Shell) -> None:
    said = shell("verify", SMALL[model])
    assert said.code == 0 and said.out.startswith("verified  ")
    assert "the edits give the graph as compiled, value for value" in said.out
    assert "the final graph in float64 deviates by" in said.out and "the program on cpu deviates by" in said.out


@pytest.mark.exhaustive
def test_queries_whose_keys_are_all_padded_get_what_the_model_as_written_gives(shell: Shell, tmp_path: Path) -> None:
    """GPT-2 adds its padding to scores that are filled in already."""
    np.save(tmp_path / "mask.npy", np.array([[0, 0, 0, 1, 1], [1, 1, 0, 0, 1]]))
    np.save(tmp_path / "ids.npy", np.arange(10).reshape(2, 5))
    given = [
        f"--input={name}=@{tmp_path / file}.npy" for name, file in (("attention_mask", "mask"), ("input_ids", "ids"))
    ]
    told = shell("verify", str(GPT2), *given, "--json").data
    assert told["holds"] and "attention" in {r["rule"] for r in told["rules"]}


@pytest.mark.slow
def test_sizes_are_drawn_and_inputs_may_be_given(shell: Shell, layer: str) -> None:
    assert "rows = 2" in shell("verify", layer).out
    assert shell("verify", layer, "--input", "x=1,2,3,4", "--size", "rows=1").code == 1, "a list has one axis"
    assert shell("verify", layer, "--size", "rows=6", "--json").data["sizes"] == {}
    assert "there is no input 'z'" in shell.fails(1, "verify", layer, "--input", "z=1")
    assert "not negative" in shell.fails(1, "verify", layer, "--tolerance", "-1")


def test_data_has_every_rule(shell: Shell, layer: str) -> None:
    told = shell("verify", layer, "--json").data
    assert told["schema_version"] == 1 and told["holds"] and told["replays"]
    (linear,) = [r for r in told["rules"] if r["rule"] == "linear"]
    assert (linear["applications"], linear["kinds"], linear["checked"]) == (1, 1, 1)
    worst = linear["worst"]
    assert (worst["pass"], worst["node"], worst["deviation"]) == ("fuse", "%2", 0)
    assert (worst["before"], worst["after"]) == ("relu(add(matmul(x, w), b))", "linear(x, w, b, act=relu)")
    assert [o["where"] for o in told["outputs"]] == ["float64", "program"]


@pytest.mark.slow
def test_a_wrong_rule_fails_with_its_name_and_node(shell: Shell, layer: str, wrong_rule: None) -> None:
    said = shell("verify", layer)
    assert said.code == 3
    assert said.out.startswith("WRONG") and "add(%0, b) → sub(%0, b)" in said.out
    assert "sums_are_differences at add %1 at the sum: moves its value by" in said.err
    told = shell("verify", layer, "--json")
    assert told.code == 3 and not told.data["holds"]


@pytest.mark.slow
def test_outputs_that_differ_are_a_failed_check(shell: Shell) -> None:
    said = shell("verify", SMALL["bert"], "--tolerance", "0")
    assert said.code == 5 and "outputs differ from the graph as written: last_hidden_state by" in said.err


@pytest.mark.slow
def test_gradients_hold(shell: Shell) -> None:
    said = shell("verify", SMALL["bert"], "--gradients", "--wrt", "layers.1.norm*")
    assert said.code == 0 and said.out.startswith("verified  4 gradients against central differences in float64")
    assert "layers.1.norm1.gain" in said.out


@pytest.mark.slow
def test_gradients_as_data(shell: Shell) -> None:
    said = shell("verify", SMALL["bert"], "--gradients", "--wrt", "layers.0.bo", "--json")
    found = json.loads(said.out)
    assert found["holds"] and [g["name"] for g in found["gradients"]] == ["layers.0.bo"]
    assert found["not_finite"] is None

"""`dovetail operators`, and docs/operators.md, which is generated from the same rules."""

from __future__ import annotations

import pytest

from dovetail.frontends.onnx.rules import REGISTRY
from tests.cli.commands import Shell


@pytest.mark.slow
def test_every_rule_is_listed(shell: Shell) -> None:
    said = shell("operators")
    assert said.code == 0 and not said.err
    named = {rule.op for rule in REGISTRY.all()}
    assert named <= {line.split()[0] for line in said.out.splitlines()}
    assert "not supported" in said.out


def test_one_operator_is_told_in_full(shell: Shell) -> None:
    said = shell("operators", "Squeeze")
    assert said.out.startswith("Squeeze: ") and "known inputs: axes" in said.out
    found = shell("operators", "Squeeze", "--json").data
    assert found["schema_version"] == 1
    assert [(row["name"], row["how"]) for row in found["operators"]] == [("Squeeze", "rule")]


@pytest.mark.slow
def test_an_operator_that_there_is_not_has_a_hint(shell: Shell) -> None:
    assert "did you mean Reshape?" in shell.fails(1, "operators", "reshape")
    assert "dovetail operators" in shell.fails(1, "operators", "zzzzzz")

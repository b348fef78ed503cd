"""`dovetail quantize`, and what `--quantize` changes in a report and in results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import SMALL, Said, Shell


@pytest.mark.slow
def test_every_matrix_is_told_with_its_error(shell: Shell) -> None:
    found = shell("quantize", SMALL["llama"], "--kind", "int4", "--json").data
    done = [layer for layer in found["layers"] if not layer["kept"]]
    assert done and all(0 < layer["error"] < 0.12 and layer["after"] < layer["before"] / 5 for layer in done)
    assert "WEIGHTS" in shell("quantize", SMALL["llama"]).out


def test_a_bound_that_does_not_hold_fails(shell: Shell) -> None:
    said = shell("quantize", SMALL["llama"], "--kind", "int4", "--fail-above", "0.001")
    assert said.code == 5 and "has an error of" in said.err


@pytest.mark.exhaustive
def test_a_report_says_what_a_token_reads(shell: Shell) -> None:
    def weights(*more: str) -> Said:
        return shell("explain", SMALL["llama_step"], "--json", *more)

    assert weights().data["weights"] == []
    found = {entry["format"]: entry for entry in weights("--quantize", "int8").data["weights"]}
    assert found["q8_0"]["bytes"] * 32 == found["q8_0"]["as_floats"] // 4 * 34
    assert "a token, reads" in shell("explain", SMALL["llama_step"], "--quantize", "int8").out


@pytest.mark.slow
def test_results_are_near(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, more in (("wide", []), ("narrow", ["--quantize", "int8"])):
        assert shell("run", SMALL["llama"], "--random", "0", "--output", f"{name}.npz", *more).code == 0
    wide, narrow = (next(iter(dict(np.load(f"{name}.npz")).values())) for name in ("wide", "narrow"))
    assert 0 < np.abs(wide - narrow).max() < 0.05 * np.abs(wide).max()

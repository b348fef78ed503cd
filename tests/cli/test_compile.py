"""`dovetail compile`: a model as a file that runs elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail import Program, compile, load
from dovetail.dtypes import f32
from dovetail.targets.cpu import cores
from tests.cli.commands import Shell
from tests.frontends.onnx.build import model

pytestmark = pytest.mark.skipif(
    cores.is_arm() or not sys.platform.startswith("linux"), reason="this system saves no programs: x86-64 Linux does"
)


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    path = tmp_path / "scaled.onnx"
    weights = {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}
    made = model(["MatMul x w -> p", "Relu p -> y"], {"x": f32["n", 4]}, ["y"], initializers=weights)
    path.write_bytes(made.SerializeToString())
    return path


def test_a_model_becomes_a_file_that_runs(
    shell: Shell, scaled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.dovetail"
    said = shell("compile", str(scaled), "--output", str(path), "--isa", "sse+native")
    assert said.code == 0 and f"{path}: " in said.out and "for sse, native" in said.out
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(Program.load(path)(x)["y"], compile(load(scaled))(x)["y"])
    monkeypatch.chdir(tmp_path)
    assert shell("compile", str(scaled)).code == 0 and (tmp_path / "scaled.dovetail").exists()


def test_what_cannot_be_written_is_said(shell: Shell, scaled: Path, tmp_path: Path) -> None:
    assert "use sse, avx2, avx512, native" in shell.fails(1, "compile", str(scaled), "--isa", "avx9")
    assert "cannot be written" in shell.fails(
        1, "compile", str(scaled), "--output", str(tmp_path / "no" / "x.dovetail")
    )
    shell.fails(2, "compile", str(scaled), "--target", "reference", "--output", str(tmp_path / "x.dovetail"))
    path = tmp_path / "program.dovetail"
    assert shell("compile", str(scaled), "--output", str(path)).code == 0
    assert "Program.load" in shell.fails(1, "run", str(path), "--random", "0")

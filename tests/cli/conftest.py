"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli import progress
from tests.cli.commands import LAYER, WRONG_BIAS, Shell


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine would tell of phases that are short elsewhere; tests of progress switch it on."""
    monkeypatch.setattr(progress, "SHORT", float("inf"))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def layer(tmp_path: Path) -> str:
    """A file with a layer that fuses."""
    path = tmp_path / "layer.txt"
    path.write_text(LAYER)
    return str(path)


@pytest.fixture
def wrong_bias(tmp_path: Path) -> str:
    """A file with a layer whose bias does not fit."""
    path = tmp_path / "wrong.txt"
    path.write_text(WRONG_BIAS)
    return str(path)

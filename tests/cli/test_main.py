"""The command line as a person meets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dovetail
from dovetail.cli.main import main


def test_version_of_the_module() -> None:
    done = subprocess.run([sys.executable, "-m", "dovetail", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dovetail {dovetail.__version__}\n"


def test_unknown_option_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no-such-option"]) == 1
    shown = capsys.readouterr()
    assert not shown.out
    assert "--no-such-option" in shown.err and "hint: dovetail --help" in shown.err

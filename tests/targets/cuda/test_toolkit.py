"""Programs of CUDA's toolkit are found where wheels have them; tests that lack one say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dovetail.targets.cuda.code import code_view
from tests.targets.cuda.assembled import spilled_bytes, told_of

SPILLS = "    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads"


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that Python imports from, and no program elsewhere."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(code_view, "FOLDERS", ())
    monkeypatch.setattr(sys, "path", [str(site)])
    return site


@pytest.mark.parametrize("wheel", ["cu13", "cuda_nvcc"])
def test_programs_of_wheels_are_found_wherever_they_are_imported_from(nowhere: Path, wheel: str) -> None:
    """Wheels for CUDA 12 and 13 have folders of different names; an editable install is not beside them."""
    assert code_view.tool("ptxas") is None
    there = nowhere / "nvidia" / wheel / "bin" / "ptxas"
    there.parent.mkdir(parents=True)
    there.write_text(f"#!/bin/sh\necho '{SPILLS}' >&2\n")
    assert code_view.tool("ptxas") is None, "it cannot be executed"
    there.chmod(0o755)
    assert code_view.tool("ptxas") == str(there)
    assert spilled_bytes(told_of("", "sm_90a", nowhere)) == 12


def test_tests_of_spills_are_skipped_without_an_assembler(nowhere: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="ptxas is neither on the PATH nor in a wheel"):
        spilled_bytes("")
    with pytest.raises(pytest.skip.Exception, match="ptxas is neither"):
        told_of("", "sm_90a", nowhere)

"""`dovetail doctor`: packages, the machine, targets."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from dovetail.cli.doctor import Package, missing, packages
from dovetail.kernels.device import CAPABILITIES
from tests.cli.commands import Shell


@pytest.mark.slow
def test_what_is_installed_is_told(shell: Shell) -> None:
    said = shell("doctor", "--json")
    assert said.code == 0 and not said.err
    found = said.data
    assert found["schema_version"] == 1
    versions = {p["name"].replace("_", "-"): p["version"] for p in found["packages"]}
    assert versions["numpy"] == np.__version__ and versions["ml-dtypes"] == metadata.version("ml_dtypes")
    assert found["python"]["executable"] == sys.executable
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))


@pytest.mark.slow
def test_targets_are_tried_and_not_believed(shell: Shell) -> None:
    targets = {t["target"]: t for t in shell("doctor", "--json").data["targets"]}
    assert targets["reference"]["runs"] and targets["cpu"]["runs"]
    assert not targets["cuda"]["runs"] and targets["cuda"]["note"].startswith("plans only")


@pytest.mark.slow
def test_text_has_the_same(shell: Shell) -> None:
    said = shell("doctor").out
    assert f"numpy            {np.__version__}" in said
    assert "cpu              runs here" in said and "cuda             does not run here: plans only" in said


def test_a_package_that_is_missing_comes_with_its_command() -> None:
    wanted = ["numpy>=1.26", "no-such-package[x]>=2,<3 ; extra == 'rare'", "@@"]
    present, absent = packages(wanted)
    assert present.version == np.__version__ and present.extra == ""
    assert absent == Package("no-such-package", None, "rare", f"{sys.executable} -m pip install 'dovetail-ml[rare]'")
    (lack,) = missing([present, absent], measured=True, kept={"on": True, "problem": ""})
    assert (lack.what, lack.add) == ("no-such-package", absent.add)
    needed, lack = missing(packages(["gone-too>=1", wanted[1]]), measured=True, kept={"on": True, "problem": ""})
    assert needed.add == f"{sys.executable} -m pip install 'gone-too>=1'" and lack.what == "no-such-package"


def test_extras_of_contributors_are_for_checkouts() -> None:
    lines = ["ruff>=0.6 ; extra == 'check'", "safetensors>=0.5 ; extra == 'safetensors'"]
    assert [p.extra for p in packages(lines)] == ["safetensors"]
    check, safetensors = packages(lines, Path("/src/tree"))
    assert check.add.endswith("-m pip install -e '/src/tree[check]'")
    assert safetensors.add.endswith("-m pip install -e '/src/tree[safetensors]'")


@pytest.mark.slow
def test_figures_and_cache_that_are_missing_come_with_their_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = shell("doctor").out
    assert "the compile cache: " in said and "add it with: unset DOVETAIL_CACHE" in said
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "cache"))
    found = shell("doctor", "--json").data
    assert found["cache"]["on"] and found["cache"]["folder"] == str(tmp_path / "cache")
    assert [lack["add"] for lack in found["missing"] if "pip" not in lack["add"]] == ["dovetail doctor --calibrate"]


@pytest.mark.slow
def test_the_processor_is_told_as_compiled_code_uses_it(shell: Shell) -> None:
    found = shell("doctor", "--json").data["processor"]
    assert found["vector_bits"] in (128, 256, 512) and found["vector_registers"] >= 16
    assert found["caches"] == sorted(found["caches"]) and found["llvm"]
    assert set(found["capabilities"]) <= set(CAPABILITIES) and all(
        c in shell("doctor").out for c in found["capabilities"]
    )
    assert f"{found['vector_registers']} vectors of {found['vector_bits']} bits" in shell("doctor").out
